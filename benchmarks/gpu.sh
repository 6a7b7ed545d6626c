#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Time training steps on a GPU and reproduce published numbers, in calls of any length:
#
#     bash benchmarks/gpu.sh DATA OUT [MINUTES]
#
# DATA is CIFAR-100: `cifar100`, or a folder of train/CLASS and test/CLASS. A call ends after MINUTES (10); the next one
# with the same OUT, or a copy of it on another machine, continues exactly where the last checkpoint is. A row of
# OUT/results.csv is written when a command ends: done, failed (the reason is in OUT/NAME.log), or cut (the time was
# over). Rows that are done or failed are not run again: remove their lines to repeat them. Environment: ROWS, a regular
# expression of names to run; KEYS, recipe keys for all of them; PYTHON, the interpreter; STEP_SECONDS, the limit of
# a timing (120).
set -uo pipefail
[[ $# -ge 2 && ${3:-10} =~ ^[0-9]+$ ]] || { echo "usage: bash benchmarks/gpu.sh DATA OUT [WHOLE MINUTES]" >&2; exit 2; }
data=$1 out=$2 end=$((60 * ${3:-10})) results=$2/results.csv  # of SECONDS, which bash counts from the start
python=${PYTHON:-python} keys=${KEYS:-}
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
mkdir -p "$out"
[ -f "$results" ] || echo "name,state,device,seconds,published,best,last,seed,epochs,ms_a_step,s_an_epoch,share_of_limit,first_step_s,resume" >"$results"
trap 'end=0' INT TERM  # the row that runs is recorded as cut
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH=$root/src:$root${PYTHONPATH:+:$PYTHONPATH}

due() {  # NAME: true if a row is to be run, and there is time
  [[ $1 =~ ${ROWS:-.} ]] && ((SECONDS < end)) && ! grep -qE "^$1,(done|failed)," "$results"
}
limited() {  # SECONDS COMMAND: run it for so long, at most to the end of the call
  local seconds=$((end - SECONDS < $1 ? end - SECONDS : $1))
  echo "$(date -u +%FT%TZ) ${*:2}" >&2
  timeout --foreground -k 60 "$seconds" "${@:2}"
}
record() {  # NAME STATUS BEGAN VALUES
  local state=done
  (($2 == 0)) || { state=failed; ((SECONDS < end)) || state=cut; }
  echo "$1,$state,${gpu:-CPU},$((SECONDS - $3)),$4" | tee -a "$results"
}
step() {  # NAME RECIPE MEGABYTES KEYS: time its step eagerly, compiled, and as a CUDA graph; megabytes that an image moves
  local mode name began values
  for mode in "eager --engine.compile false" "compiled --engine.compile true" \
    "captured --engine.compile true --engine.cuda_graph true"; do
    name=$1-${mode%% *} began=$SECONDS
    due "$name" || continue
    values=$(limited "${STEP_SECONDS:-120}" $python -m benchmarks.recipe_step "$2" --megabytes "$3" "${@:4}" ${mode#* } $keys \
      2>>"$out/$name.log" | tail -n 1)
    record "$name" $? "$began" ",,,,,${values:-,,,,}"
  done
}
train() {  # NAME PUBLISHED TABLE ROW: train it, or continue
  local run=$out/$1 began=$SECONDS command values status
  due "$1" || return 0
  command=(train "$data" --table "$3" --row "$4" --seed 0 --out "$run" $keys)
  [ -f "$run/run.json" ] && command=(resume "$run" "$data")
  limited 1000000 $python -m viticulture "${command[@]}" >>"$out/$1.log" 2>&1
  status=$?
  values=$(awk -F, '$3 == "test/accuracy" {last = 100 * $4; if (last > best) best = last}
    $3 == "train/loss_epoch" {epochs = $2 + 1} END {printf "%.2f,%.2f,0,%d", best, last, epochs}' "$run/metrics.csv")
  record "$1" $status "$began" "$2,$values,,,,,"
}

step dhvt dhvt/cifar100-tiny-patch4 59  # estimates of benchmarks/log/gpu.md; those of CiT and MAE are unknown
step joint bootstrap/cifar-joint 201
step cit co_advise/imagenet-tiny 0
step mae mae/imagenet 0 --train.batch_size 1024
train dhvt-vit-4-heads 67.59 dhvt/table4 "ViT-T, 4 heads"
train dhvt-vit-3-heads 66.50 dhvt/table4 "ViT-T, 3 heads"
train dhvt-4-heads 80.98 dhvt/table4 "DHVT-T, 4 heads"
train bootstrap-vit 61.25 bootstrap/table1-cifar100 "ViT-S"
train bootstrap-agent 74.62 bootstrap/table1-cifar100 "Agent-S"
train bootstrap-joint 76.19 bootstrap/table1-cifar100 "ViT-S (joint)"
