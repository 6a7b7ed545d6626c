# SPDX-License-Identifier: Apache-2.0
"""The command line: quick help, and every mistake is one clear line with exit code 2 before training starts."""

import inspect
import json
import os
import pkgutil
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from rich.console import Console

import viticulture
from children import ends_well
from photographs import pictures
from untrained import untrained
from viticulture import cli
from viticulture.cli import main
from viticulture.command import COMMANDS, parse_command, parser_of
from viticulture.config.load import load_config, shipped
from viticulture.config.schema import METHODS
from viticulture.study.paper_tables import read_table
from viticulture.text import shell_word
from viticulture.waiting import waiting

KEYS = ("optim.weight_decay", "schedule.rule", "engine.precision", "images.max_cache_gb", "method.smoothing")
FAST = ["--epochs", "1", "--per-class", "4", "--student.name", "vit_nano"]


SLOW = {"torch", "torchvision", "timm", "lightning", "numpy", "PIL", "jsonargparse", "sklearn", "rich"}


def imported_by(program: str) -> set[str]:
    """Return the packages that a Python program imports."""
    program += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_slow() -> None:
    """What is imported decides the time on every machine."""
    helps = "from viticulture.cli import COMMANDS, main\nmain(['--help'])\nfor verb in COMMANDS: main([verb, '--help'])"
    imported = imported_by(helps)
    assert "viticulture" in imported
    assert not imported & SLOW


def test_threads_that_wait_give_way_unless_the_user_says_otherwise() -> None:
    """Two threads beside two busy processes take 9 to 45 times as long a step where they spin at every barrier."""
    program = "import viticulture, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    for name, value, expected in (
        ("", "", "1000"),
        ("GOMP_SPINCOUNT", "7", "7"),
        ("OMP_WAIT_POLICY", "ACTIVE", "None"),
    ):
        free = {key: held for key, held in os.environ.items() if not key.startswith(("GOMP_", "OMP_"))}
        variables = {**free, **({name: value} if name else {})}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=variables
        )
        assert done.stdout.split() == [expected]


def test_mistakes_without_torch_are_refused_before_it_is_imported(tmp_path: Path) -> None:
    run, study = tmp_path / "run", tmp_path / "study"
    untrained(run, ("a", "b"))
    study.mkdir()
    (study / "study.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        commands = {
            "no such file or folder": ["train", str(tmp_path / "absent")],
            "did you mean cifar100": ["compare", "cifar1000"],
            "a budget is a time": ["train", "digits", "--budget", "3x"],
            "did you mean train.epochs": ["compare", "digits", "--train.epoch", "3"],
            "did you mean optim?": ["train", "digits", "--optm.lr", "3"],
            "does not exist": ["evaluate", str(tmp_path / "absent")],
            f"go on with it: viticulture compare resume {study}": ["resume", str(study)],
            "no such file or folder: ": ["predict", str(run), str(tmp_path / "absent.png")],
            "cannot listen": ["serve", str(run), "--port", port],
        }
        program = "import contextlib, io\nfrom viticulture.cli import main\n"
        for said, words in commands.items():
            program += f"with contextlib.redirect_stderr(io.StringIO()) as err: assert main({words!r}) == 2\n"
            program += f"assert {said!r} in err.getvalue(), err.getvalue()\n"
        assert not imported_by(program) & {"torch", "torchvision", "timm", "lightning"}


def test_commands_that_only_read_files_import_no_torch(tmp_path: Path) -> None:
    run = untrained(tmp_path / "runs" / "a")
    run.write("report.html", "")
    commands = ["runs", str(tmp_path / "runs")], ["resume", str(run.path)], ["recipes"], ["cache"]
    program = f"from viticulture.cli import main\nfor words in {commands!r}: assert main(words) == 0"
    assert not imported_by(program) & {"torch", "torchvision", "timm", "lightning", "sklearn"}


def test_help_is_short_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    short = capsys.readouterr().out
    assert short.count("\n") < 50
    assert all(word in short for word in ("positional arguments:", "--like", "--epochs", "--help-all", "--table TABLE"))
    assert main(["train", "--help-all"]) == 0
    full = capsys.readouterr().out
    assert all(f"--{key} " in full for key in ("augment.flip.probability", "guides.logits.teacher", *KEYS))
    assert all(f"with --method.name {name}: " in full for name in METHODS if name != "supervised")
    assert all(f"--method.{key} " in full for key in ("smoothing", "mask_ratio", "masks", "loss", "local_crops.count"))
    assert "--student CONFIG" not in full, "--student is the network's name here, not a file"
    assert main(["compare", "--help"]) == 0
    assert "data.per_class" not in capsys.readouterr().out
    assert main(["evaluate", "--help-all"]) == 0
    assert "recipe" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", [[], *([name] for name in COMMANDS), ["compare", "resume"], ["train", "--table"]])
def test_every_command_documents_its_arguments(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb, "--help"]) == 0
    assert f"usage: viticulture {' '.join(verb[:1]) or 'COMMAND'}" in capsys.readouterr().out
    if verb:
        assert all(action.help for action in parser_of([*verb, "x"])[0].arguments)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train digits --over", "unknown option --over; did you mean --overwrite?"),
        ("train digits --batch_size 8", "did you mean --batch-size?"),
        ("train digits --epoch=8", "did you mean --epochs?"),
        ("localize run --boxs b.txt", "did you mean --boxes?"),
        ("compare digits --recipe default/digits", "did you mean --recipes?"),
        ("export run --optim.lr 3", "--optim.lr; valid: --from-pixels, --int8, --out, --weights; see"),
        ("demo --optim.lr 3", "unknown option --optim.lr; valid: none;"),
        ("localize run", "required: --boxes"),
        ("train --table dhvt/table4", "required: --row; see `viticulture train --table TABLE --help`"),
    ],
)
def test_a_mistyped_option_names_the_nearest_one(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    assert words in capsys.readouterr().err


def test_a_teacher_is_an_option_of_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`train DATA --teacher NETWORK`. Fails if the check before PyTorch is loaded takes it for a recipe key."""
    words = ["train", "digits", "--teacher", "no_such_network", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert "no_such_network" in capsys.readouterr().err
    assert main(["compare", *words[1:4]]) == 2
    assert "--teacher is an option of train; " in capsys.readouterr().err


def test_a_stopped_training_is_named_for_pasting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import viticulture.training.run

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    # Not `fit`: a module that is first imported now would keep it.
    monkeypatch.setattr(viticulture.training.run, "_trainer", stop)
    run = tmp_path / "Anna's run"
    assert cli.main(["train", "digits", "--per-class", "2", "--student", "vit_nano", "--out", str(run)]) == 130
    said = re.search(r"stopped; `(.*)` continues", capsys.readouterr().err)
    assert said
    assert shlex.split(said[1]) == ["viticulture", "resume", str(run)]
    assert cli.main(["train", "digits", "--out", str(run)]) == 2
    assert f"`{said[1]}`" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_sets_the_exit_status(
    number: signal.Signals,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """128 and the signal's number."""
    from viticulture.training.state import KeepLast, load_checkpoint

    save = KeepLast._save

    def save_and_stop(self: KeepLast, trainer: object) -> None:
        save(self, trainer)  # type: ignore[arg-type]
        signal.raise_signal(number)  # to this thread, at once

    monkeypatch.setattr(KeepLast, "_save", save_and_stop)
    run, handlers = tmp_path / "run", {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    words = ["train", "digits", "--per-class", "4", "--student", "vit_nano", "--epochs", "3", "--out", str(run)]
    monkeypatch.setattr(sys, "argv", ["viticulture", *words])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.entry()
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert ended.value.code == status
    assert f"`viticulture resume {shell_word(run)}` continues" in capsys.readouterr().err
    assert load_checkpoint(run / "checkpoints/last.ckpt")["epoch"] == 0


def test_sigterm_is_no_ctrl_c_without_a_handler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a program that calls `main`: Lightning handles it, which is told as SIGTERM, after the step."""
    from viticulture.training.state import KeepLast

    monkeypatch.setattr(KeepLast, "_save", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        words = ["train", "digits", "--per-class", "4", "--student", "vit_nano", "--epochs", "3"]
        assert cli.main([*words, "--out", str(tmp_path / "run")]) == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_closed_pipe_ends_a_list_silently() -> None:
    """`viticulture recipes | head -1`."""
    program = [sys.executable, "-m", "viticulture", "recipes"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 0
    assert "Traceback" not in said
    assert "Broken pipe" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full, by Linux's /dev/full")
@pytest.mark.parametrize(
    ("streams", "status", "words"),
    [
        (">/dev/full", 2, "cannot write to standard output: No space left on device"),
        (">&-", 2, ""),
        ("2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        (">&- 2>&-", 2, ""),
        ("<&- >&- 2>/dev/full", 2, ""),
    ],
)
def test_a_list_that_cannot_be_printed_ends_without_a_traceback(streams: str, status: int, words: str) -> None:
    program = shlex.join([sys.executable, "-m", "viticulture", "recipes"])
    done = subprocess.run(["bash", "-c", f"{program} {streams}"], capture_output=True, text=True)
    assert done.returncode == status
    assert done.stderr == (f"error: {words}; redirect it elsewhere\n" if words else "")
    assert bool(done.stdout) == (status == 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full, by Linux's /dev/full")
@pytest.mark.parametrize("stderr", ["full", "closed", "never open"])
def test_a_training_survives_a_failing_output(stderr: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full, Path(os.devnull).open("w") as closed:
        closed.close()
        monkeypatch.setattr(sys, "stderr", {"full": full, "closed": closed}.get(stderr))
        monkeypatch.setattr(sys, "stdout", None)
        assert main(["train", "digits", *FAST, "--out", str(tmp_path / "run")]) == 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # for what it still holds
    assert viticulture.open(tmp_path / "run").metadata["status"] == "finished"


def test_missing_standard_streams_reserve_their_numbers() -> None:
    program = (
        "import os; from viticulture.cli import _open_standard_streams; [os.close(i) for i in range(3)]; "
        "_open_standard_streams(); opened = os.open('/', os.O_RDONLY); os._exit(opened + 100 * os.get_inheritable(2))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode >= 103


@pytest.mark.parametrize("words", [["recipes"], ["train", "digits"], ["runs", "/tmp"]])
def test_a_command_in_a_removed_folder_is_one_line(words: list[str], tmp_path: Path) -> None:
    script = (
        f"import os, sys; os.rmdir(os.getcwd()); sys.argv[1:] = {words!r}; from viticulture.cli import entry; entry()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: the current folder was removed; cd to another one and try again\n",
    )


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"])
@pytest.mark.parametrize("value", ["", "none"])
def test_an_invalid_rank_is_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["data", "digits"]) == 2
    assert capsys.readouterr().err == (
        f"error: {name} in the environment must be an integer, got {value!r}; unset it\n"
    )


def test_recipes_begin_with_the_defaults_and_have_full_names(capsys: pytest.CaptureFixture[str]) -> None:
    table = viticulture.recipes()
    names = [str(row[0]) for row in table.rows]
    defaults = [name.startswith("default/") for name in names]
    assert defaults == sorted(defaults, reverse=True)
    every = [(row[0], row[2]) for row in viticulture.recipes(all=True).rows]
    assert (
        names == [name for name, result in every if result != "untested"] == [name for name, _ in every][: len(names)]
    )
    assert {name for name, _ in every} == set(shipped())
    console = Console(width=100, record=True)
    console.print(table)
    shown = console.export_text()
    assert all(f"{name} " in shown for name in names)


def test_a_list_in_a_pipe_is_as_wide_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in shipped())


def test_slow_work_reports_progress_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    from threading import Event

    written = Event()
    with waiting("loading", after=0.0):
        for _ in range(1000):
            if (said := capsys.readouterr().err) or written.wait(0.01):
                break
    assert said == "loading ...\n"
    with waiting("loading", after=600):
        pass
    assert capsys.readouterr().err == ""


def test_a_command_has_one_name_in_python_and_aliases_in_a_shell() -> None:
    assert parse_command(["localise", "r", "--boxes", "b"]) == parse_command(["localize", "r", "--boxes", "b"])
    assert parse_command(["inspect", "x"]) == parse_command(["data", "x"])
    assert "localise" not in dir(viticulture)
    assert inspect.signature(viticulture.data) == inspect.signature(viticulture.inspect)


def test_the_package_offers_every_command_and_imports_none() -> None:
    required = (
        (viticulture.train_row, "table"),
        (viticulture.train_row, "row"),
        (viticulture.compare_table, "table"),
        (viticulture.localize, "boxes"),
    )
    others = {"inspect", "label_next", "train_row", "compare_table", "compare_resume", "Run", "UserError"}
    assert {*COMMANDS} - {"next"} | others <= set(dir(viticulture)), "next is Python's own"
    assert set(viticulture.__all__) <= set(dir(viticulture))
    for name in viticulture.__all__:
        assert name == "__version__" or callable(getattr(viticulture, name)), name
    needed = [inspect.signature(verb).parameters[key] for verb, key in required]
    assert all(parameter.default is parameter.empty for parameter in needed)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = viticulture.trian  # type: ignore[attr-defined]
    assert imported_by("import viticulture") & {"torch", "viticulture", "argparse", "yaml"} == {"viticulture"}
    assert not imported_by("import viticulture\nviticulture.train, viticulture.report, dir(viticulture)") & SLOW


def rooms_are_verbs() -> None:
    """In a child that imports the package anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "viticulture"]:
        del sys.modules[name]
    import viticulture

    first = viticulture.models
    import viticulture.cache
    import viticulture.models.students
    import viticulture.report.terminal
    from viticulture import api, models

    assert models is first is viticulture.models
    assert isinstance(models, ModuleType)
    assert models.students.matching("vit_nan*") == [viticulture.models("vit_nan*").rows[0][0]] == ["vit_nano"]
    assert viticulture.data("digits").name == viticulture.inspect("digits").name == "digits"
    assert str(viticulture.cache()).endswith(str(viticulture.cache.cache_folder()))
    for name in ("cache", "data", "models", "report"):
        assert inspect.signature(getattr(viticulture, name)) == inspect.signature(getattr(api, name))


@pytest.mark.children
def test_a_module_named_like_a_command_can_be_called() -> None:
    ends_well(rooms_are_verbs)
    rooms = {name for _, name, _ in pkgutil.iter_modules(viticulture.__path__)}
    assert rooms & set(viticulture.__all__) == {"cache", "data", "models", "report"}


def mistakes(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """Return name of a mistake -> command and the words that its message must hold."""
    one = pictures(tmp_path / "one class", {"only": 3})
    good = pictures(tmp_path / "good", {"a": 10, "b": 10})
    gap = pictures(tmp_path / "gap", {"train/a": 3, "train/b": 3, "test/a": 2, "test/b": 2, "test/c": 2})
    (tmp_path / "empty").mkdir()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").write_text("years of work")
    broken = pictures(tmp_path / "broken", {"a": 10, "b": 10})
    (broken / "a" / "0.png").write_text("no image")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("student: vit_nano\nstudents: {}\n")
    return {
        "missing folder": (["train", str(tmp_path / "nowhere")], "nowhere"),
        "no data": (["train"], "data"),
        "no images": (["train", str(tmp_path / "empty")], "no images"),
        "one class": (["train", str(one)], "one class only"),
        "class without training images": (["train", str(gap)], "no training images: c"),
        "unreadable file": (["train", str(broken)], "--skip-unreadable"),
        "patch does not divide": (["train", "digits", "--images.image_size", "9"], "multiple"),
        "unknown recipe": (["train", "digits", "--recipe", "default/digit"], "default/digits"),
        "unknown student": (["train", "digits", "--student", "vit_nan"], "vit_nano"),
        "unknown key": (["train", "digits", "--optim.learning_rate", "1"], "optim.lr"),
        "unknown section in a file": (["train", "digits", "--recipe", str(recipe)], "student"),
        "unknown verb": (["trian", "digits"], "train"),
        "unknown augmentation": (["train", "digits", "--augment.flop.probability", "1"], "flip"),
        "unknown guide": (["train", "digits", "--guides.logit.teacher", "x"], "logits"),
        "wrong type": (["train", "digits", "--epochs", "many"], "train.epochs"),
        "fraction above one": (["train", "digits", "--fraction", "10"], "(0, 1]"),
        "batch larger than the set": (["train", str(good), "--batch-size", "500"], "must not exceed"),
        "batch that cannot be shared": (
            ["train", "digits", "--batch-size", "20", "--train.accumulate", "3"],
            "multiple",
        ),
        "negative seed": (["train", "digits", "--seed", "-1"], "negative"),
        "no GPU": (["train", "digits", "--device", "cuda"], "sees no GPU"),
        "folder in use": (["train", "digits", "--out", str(tmp_path / "used")], "exists already"),
        "overwrite no run": (["train", "digits", "--out", str(tmp_path / "used"), "--overwrite"], "holds no run"),
        "resume nothing": (["resume", str(tmp_path / "nowhere")], "does not exist"),
        "evaluate no run": (["evaluate", str(tmp_path / "used")], "no run folder"),
        "warm-up longer than training": (
            ["train", "digits", "--epochs", "2", "--schedule.warmup_epochs", "5"],
            "fewer",
        ),
        "value missing": (["train", "digits", "--epochs"], "needs a value"),
        "empty budget": (["train", "digits", "--budget", ""], "--budget needs a value"),
        "empty budget of a study": (["compare", "digits", "--budget="], "--budget needs a value"),
        "empty recipe key": (["train", "digits", "--per-class", ""], "--per-class needs a value"),
        "unknown table": (["train", "--table", "nothing/table1", "--row", "x"], "table"),
    }


def test_every_mistake_is_one_clear_line_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (command, words) in mistakes(tmp_path).items():
        assert main(command) == 2, name
        shown = capsys.readouterr()
        assert words in shown.err, f"{name}: {shown.err}"
        assert shown.err.count("\n") <= 3, f"{name}: {shown.err}"
        assert "Traceback" not in shown.err, name
        assert not (tmp_path / "runs").exists(), name
    assert (tmp_path / "used" / "thesis.txt").read_text() == "years of work"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert main(["train", "digits", *FAST, "--out", str(tmp_path / "run")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_tour_of_the_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """train, evaluate, predict, report, on a folder with awkward names."""
    names = {"<b>fett & 'co'": 12, "zwei Wörter": 12}
    photos = pictures(tmp_path / "my photos", names)
    run = tmp_path / "run"
    assert main(["train", str(photos), *FAST, "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run)]) == 0
    assert "top-1" in capsys.readouterr().out
    assert main(["evaluate", str(run), str(photos)]) == 0
    capsys.readouterr()
    (tmp_path / "torn.png").write_bytes(b"")
    out = tmp_path / "predictions.json"
    files = [str(photos / "zwei Wörter"), str(tmp_path / "torn.png")]
    assert main(["predict", str(run), *files, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"written  {out}" in said.err
    assert said.out.split()[:4] == ["name", "label", "probability", "error"], "as the file's columns"
    answers = json.loads(out.read_text())
    assert len(answers) == 13
    assert set(answers[0]["probabilities"]) == set(names)
    assert [bool(answer["error"]) for answer in answers] == [False] * 12 + [True]
    page = (run / "report.html").read_text()
    assert "<b>fett" not in page
    assert "&lt;b&gt;fett" in page
    for verb in ("recipes", "tables", "models"):
        assert main([verb]) == 0
    assert "default/digits" in capsys.readouterr().out


def test_print_config_shows_a_budgets_plan_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--budget", "2m", "--student", "vit_nano", "--print-config"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["student"]["name"] == "vit_nano"
    assert "student" in printed.err
    assert "--init" in printed.err, "a public network is named where none is used"
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_the_resolved_recipe_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--recipe", "default/digits", "--epochs", "7", "--print-config"]) == 0
    assert "epochs: 7" in capsys.readouterr().out
    assert main(["train", "--table", "dhvt/table4", "--row", "DHVT-T, 4 heads", "--seed", "3", "--print-config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    row = read_table("dhvt/table4").row("DHVT-T, 4 heads")
    assert shown == yaml.safe_load(load_config(row.recipe, row.overrides).to_yaml())
