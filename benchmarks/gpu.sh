#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Time training steps on a GPU and reproduce published numbers, in calls of any length:
#
#     bash benchmarks/gpu.sh DATA OUT [MINUTES]
#
# DATA is CIFAR-100: `cifar100`, or a folder of train/CLASS and test/CLASS. A call ends after MINUTES (10) and the step
# that then runs; the next one with the same OUT, or a copy of it on another machine, continues at the last checkpoint,
# exactly. OUT/results.csv gets a row when a command ends: done, failed (OUT/NAME.log says why), or cut by the call's
# end. Rows that are done or failed are not run again: remove their lines to repeat them. Best accuracies are of the
# epochs that the recipe validates. Environment: ROWS, a regular expression of names; KEYS, recipe keys for all rows;
# STEP_SECONDS, the limit of a timing (120); PYTHON, the interpreter.
set -uo pipefail
[[ $# -ge 2 && ${3:-10} =~ ^[0-9]+$ ]] || { echo "usage: bash benchmarks/gpu.sh DATA OUT [WHOLE MINUTES]" >&2; exit 2; }
mkdir -p "$2" || exit
data=$1 out=$(cd "$2" && pwd) end=$((60 * ${3:-10}))  # of SECONDS, which bash counts from the start
results=$out/results.csv
columns=name,state,device,seconds,published,best,last,seed,epochs,ms_a_step,s_an_epoch,share,first_step_s,resume
[ -f "$results" ] || echo $columns >"$results"
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
python=${PYTHON:-python} root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH=$root/src:$root${PYTHONPATH:+:$PYTHONPATH}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$out/compiled}  # the next call compiles nothing again
trap 'end=0' INT TERM  # the row that runs is cut

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
step() {  # NAME RECIPE MEGABYTES KEYS: time its step in three modes; megabytes that it must move for an image
  local mode name began values
  for mode in "eager --engine.compile false" "compiled --engine.compile true" \
    "captured --engine.compile true --engine.cuda_graph true"; do
    name=$1-${mode%% *} began=$SECONDS
    due "$name" || continue
    values=$(limited "${STEP_SECONDS:-120}" $python -m benchmarks.recipe_step "$2" --megabytes "$3" \
      "${@:4}" ${mode#* } ${KEYS:-} 2>>"$out/$name.log" | tail -n 1)
    record "$name" $? "$began" ",,,,,${values:-,,,,}"
  done
}
train() {  # NAME PUBLISHED TABLE ROW: train it, or continue
  local run=$out/$1 began=$SECONDS command=(train "$data" --table "$3" --row "$4" --seed 0 --out "$out/$1" ${KEYS:-})
  due "$1" || return 0
  [ -f "$run/run.json" ] && command=(resume "$run" "$data")
  limited $end $python -m viticulture "${command[@]}" >>"$out/$1.log" 2>&1
  record "$1" $? "$began" "$2,$(accuracies "$run/metrics.csv"),,,,,"
}
accuracies() {  # FILE: best and last in percent, seed, epochs
  [ -f "$1" ] && awk -F, '$3 == "test/accuracy" {last = sprintf("%.2f", 100 * $4); if (last + 0 > best + 0) best = last}
    $3 == "train/loss_epoch" {epochs = $2 + 1} END {printf "%s,%s,0,%d", best, last, epochs}' "$1" || echo ,,0,0
}

step dhvt dhvt/cifar100-tiny-patch4 59  # by the estimates of benchmarks/log/gpu.md; of CiT and MAE there are none
step joint bootstrap/cifar-joint 201
step cit co_advise/imagenet-tiny 0
step mae mae/imagenet 0 --train.batch_size 1024
train dhvt-vit-4-heads 67.59 dhvt/table4 "ViT-T, 4 heads"
train dhvt-vit-3-heads 66.50 dhvt/table4 "ViT-T, 3 heads"
train dhvt-4-heads 80.98 dhvt/table4 "DHVT-T, 4 heads"
train bootstrap-vit 61.25 bootstrap/table1-cifar100 "ViT-S"
train bootstrap-agent 74.62 bootstrap/table1-cifar100 "Agent-S"
train bootstrap-joint 76.19 bootstrap/table1-cifar100 "ViT-S (joint)"
