# SPDX-License-Identifier: Apache-2.0
"""Grids and their YAML, plans within their terms and budget, successive halving."""

import re
from dataclasses import replace

import pytest

from refusals import refused
from viticulture.errors import UserError
from viticulture.report.study_tables import plan_note, plan_table
from viticulture.study.grid import Candidate, Cell, Grid, of_recipes, slug
from viticulture.study.halving import decide
from viticulture.study.outcomes import Outcome
from viticulture.study.paper_tables import read_table
from viticulture.study.plan import START, StudyPlan, check_budget, cost, make_plan, most_expensive
from viticulture.study.step_times import StepTimes
from viticulture.study.terms import Subset, Subsets, Terms

FAST, SLOW = StepTimes(0.01, 10, 0.0, 0, 0), StepTimes(0.05, 10, 0.0, 0, 0)  # an epoch takes 0.13 and 0.53 s


def grid(budget: str = "", equal: str = "epochs", halving: bool = False, candidates: int = 2, **more: object) -> Grid:
    names = ["fast", "slow", "third", "fourth", "fifth", "sixth", "seventh", "eighth"][:candidates]
    terms = Terms(budget, equal, halving)  # type: ignore[arg-type]
    return Grid("digits", tuple(Candidate(name, "r", {"n": i}) for i, name in enumerate(names)), terms=terms, **more)  # type: ignore[arg-type]


def planned(of: Grid, own: dict[str, int] | None = None, workers: int = 1) -> StudyPlan:
    own = own or {one.name: 100 for one in of.candidates}
    paces = {
        (one.name, subset.name): FAST if one.name == "fast" else SLOW
        for one in of.candidates
        for subset in of.subsets.each()
    }
    return make_plan(of, own, dict.fromkeys(own, 5.0), paces, workers)


def test_a_grid_survives_yaml() -> None:
    evil = "DHVT-T, 4 heads: <b>é & 10 %</b>"
    made = Grid(
        "./my photos",
        (Candidate(evil, "dhvt/digits", {"augment.mix": None, "optim.lr": 1e-4}, published=80.98), *of_recipes(["a"])),
        Subsets(fractions=(0.05, 1.0), per_class=(20,)),
        (3, 1),
        terms=Terms("90min", "time", True),
        epochs=7,
    )
    assert Grid.from_yaml(made.to_yaml(), "study.yaml") == made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: x\ncandidates: [{name: a, recipe: b}]\nseed: [0]", "seeds"),
        ("data: x\ncandidates: [{name: a, recip: b}]", "recipe"),
        ("data: x\ncandidates: []", "candidates"),
        ("data: x\ncandidates: [{name: a, recipe: b}, {name: a, recipe: c}]", "different names"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nseeds: [0, 0]", "different numbers"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nseeds: [1, 0.5]", r"study.seeds\[1\] must be a whole number"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nseeds: [a]", "a whole number, got 'a'"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nseeds: 3", "study.seeds must be a list in brackets, got 3"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nepochs: 2.5", "study.epochs must be a whole number"),
        ("data: x\ncandidates: [{name: 5, recipe: b}]", "candidate 5.name must be a word"),
        ("data: x\ncandidates: [{name: '', recipe: b}]", "that of b is empty"),
        ("data: x\ncandidates: [{name: a, recipe: b, measure: foo}]", "unknown measure of candidate a 'foo'"),
        ("data: x\ncandidates: [{name: a, recipe: b, measure: miuo}]", "did you mean miou"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nsubsets: {per_class: [x]}", "subsets.per_class"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nterms: {budget: soon}", "such as 90s, 30m"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nterms: {equal: time}", "budget to divide"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nsubsets: {fractions: [5]}", "ten percent is 0.1"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nsubsets: {fractions: [0.1234561, 0.1234562]}", "both 12.3456 %"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nsubsets: {per_class: [1234561, 1234562]}", "1234562 are both"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nconditions: {data.per_class: 3}", "--per-class"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nterms: {halving: 'no'}", "terms.halving must be true or false"),
        ("data: x\ncandidates: [{name: a, recipe: b}]\nterms: {equal: tme}", "terms.equal must be"),
        ("- 1", "keys and values"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_grid_that_says_nothing_sensible_is_refused(text: str, words: str) -> None:
    refused(words, Grid.from_yaml, text, "study.yaml")


def test_a_budget_may_be_a_number_of_minutes() -> None:
    """`--budget 90`."""
    assert Terms(90) == Terms("90")  # type: ignore[arg-type]


def test_every_combination_has_one_cell_and_folder() -> None:
    """Seeds outermost, so that an early stop leaves whole comparisons."""
    made = Grid("x", of_recipes(["a/b", "a b", "A-B"]), Subsets(per_class=(2, 1)), (0, 1))
    cells = made.cells()
    assert len({cell.name for cell in cells}) == len(cells) == 3 * 2 * 2
    assert [cell.seed for cell in cells] == [0] * 6 + [1] * 6
    assert [cell.subset.value for cell in cells[:6]] == [1, 1, 1, 2, 2, 2]
    assert slug("../../etc/<passwd> 5 %") == "etc-passwd-5-percent"
    assert slug("日本") == "x"


def test_rows_of_one_training_are_trained_once() -> None:
    """Bootstrapping's Table 1 prints the student and the agent of one training."""
    student = Candidate("ViT-S (joint)", "bootstrap/cifar-joint", {"a": 1})
    agent = Candidate("Agent-S (joint)", "bootstrap/cifar-joint", {"a": 1}, measure="bootstrap_agent_accuracy")
    other = Candidate("ViT-B (joint)", "bootstrap/cifar-joint", {"a": 2})
    made = Grid("cifar100", (agent, student, other), seeds=(0,))
    assert made.slugs == {
        "Agent-S (joint)": "agent-s-joint",
        "ViT-S (joint)": "agent-s-joint",
        "ViT-B (joint)": "vit-b-joint",
    }
    assert len({cell.name for cell in made.cells()}) == 2


def test_a_recipe_file_is_named_by_its_stem() -> None:
    named = [one.name for one in of_recipes(["mine/a.yaml", "dhvt/digits", "b.yml"])]
    assert named == ["a", "dhvt/digits", "b"]
    assert [one.name for one in of_recipes(["mine/a.yaml", "yours/a.yaml"])] == ["mine/a.yaml", "yours/a.yaml"]
    assert of_recipes(["mine/a.yaml"])[0].recipe == "mine/a.yaml"


def test_a_table_becomes_a_grid() -> None:
    candidates = read_table("dhvt/table4").rows
    assert {one.name: one.published for one in candidates}["DHVT-T, 4 heads"] == 80.98
    assert all(one.data == "cifar100" for one in candidates)
    for kind in ("digits", "tiny-images", "small-images", "photos"):
        assert len(read_table(f"default/{kind}").rows) >= 3


def test_a_budget_is_used_and_not_exceeded() -> None:
    """Equal epochs: the largest number whose cost stays within an hour's third."""
    made = grid("10min")
    plan = planned(made)
    assert set(plan.epochs.values()) == {100}  # 3 (13 + 53) s: within the budget, so nothing is shortened
    made = grid("1min")
    plan = planned(made)
    (epochs,) = set(plan.epochs.values())
    assert cost(made, plan) <= 60 < 3 * (epochs + 1) * (FAST.epoch + SLOW.epoch) + 6
    halved = planned(grid("1min", subsets=Subsets(per_class=(1, 2))))
    assert abs(2 * next(iter(set(halved.epochs.values()))) - epochs) <= 4
    refused("too short for 6 cells", lambda: planned(grid("7s")))


def test_a_budget_that_is_too_short_names_one_that_is_enough() -> None:
    many = Subsets(per_class=tuple(range(1, 12)))
    with pytest.raises(UserError, match=r"too short .* takes about \d+ min") as error:
        planned(grid("1m", subsets=many))
    enough = re.search(r"\d+ min", str(error.value))
    assert enough
    planned(grid(enough[0], subsets=many))


def test_a_budget_of_too_few_steps_is_refused_with_a_sufficient_time() -> None:
    made = grid("15s", equal="recipe")
    with pytest.raises(UserError, match=r"leaves 40 steps to the shortest of 6 trainings, too few") as error:
        check_budget(made, planned(made))
    times = [int(minutes) for minutes in re.findall(r"about (\d+) min", str(error.value))]
    assert times[0] > times[1] >= 1
    part = replace(planned(made), step_times={("fast", "all images"): FAST})
    refused("take more than .* use a longer --budget,", check_budget, made, part)
    for budget, seeds in ((f"{times[0]}m", (0, 1, 2)), (f"{times[1]}m", (0,))):
        enough = grid(budget, equal="recipe", seeds=seeds)
        check_budget(enough, planned(enough))
    for more in (grid("auto"), grid(), grid("2min")):
        check_budget(more, planned(more))
    check_budget(made, planned(made, dict.fromkeys(("fast", "slow"), 1)))


def test_workers_are_done_within_the_budget() -> None:
    made = grid("30s")
    for workers in (2, 3, 8):
        (epochs,) = set(planned(made, workers=workers).epochs.values())
        ends = [0.0] * workers
        for pace in (FAST, SLOW) * 3:
            first = ends.index(min(ends))
            ends[first] += pace.training(epochs) + START
        assert 30 - 4 * SLOW.epoch < max(ends) <= 30


@pytest.mark.parametrize(
    ("seconds", "steps", "budget", "epochs", "warned"),
    [
        (1.0, 10, "", 100, False),  # an hour affords all 100 epochs of both by three seeds
        (10.0, 10, "1h", 59, False),
        (100.0, 10, "1night", 59, False),  # 300 steps are 30 epochs, 5 h
        (900.0, 10, "1night", 6, True),  # 60 steps are the most that a night affords
        (900.0, 100, "1night", 6, False),
        (4000.0, 300, "1night", 1, False),  # not one epoch fits into four hours
    ],
)
def test_a_budget_of_auto_is_the_shortest_sufficient_one(
    seconds: float, steps: int, budget: str, epochs: int, warned: bool
) -> None:
    made = grid("auto")
    paces = dict.fromkeys(
        (("fast", "all images"), ("slow", "all images")), StepTimes(seconds / steps, steps, 0.0, 0, 0)
    )
    own = {"fast": 100, "slow": 100}
    plan = make_plan(made, own, dict.fromkeys(own), paces)
    assert (plan.budget, set(plan.epochs.values())) == (budget, {epochs})
    note = plan_note(made, plan)
    assert ("a budget of 1night, chosen from 1h, 2h, 4h and 1night" in note) == (budget == "1night")
    assert ("too few for a ranking" in note) == warned
    assert StudyPlan.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize(
    ("budget", "chosen", "tried"),
    [("15s", "cheap", 1), ("150s", "cheap", 2), ("250s", "middle", 3), ("20min", "dear", 3), ("", "dear", 3)],
)
def test_a_budget_uses_the_largest_images_for_sixty_epochs(budget: str, chosen: str, tried: int) -> None:
    seen: list[str] = []

    def plan(keys: dict[str, str]) -> StudyPlan:
        seen.append(keys["images.image_size"])
        made, factor = grid(budget), {"cheap": 1.0, "middle": 2.0, "dear": 10.0}[seen[-1]]
        paces = {(name, "all images"): pace.scaled(factor) for name, pace in (("fast", FAST), ("slow", SLOW))}
        return replace(
            make_plan(made, dict.fromkeys(("fast", "slow"), 100), {"fast": None, "slow": None}, paces), image_keys=keys
        )

    plan_made = most_expensive([{"images.image_size": name} for name in ("cheap", "middle", "dear")], plan)
    assert (plan_made.image_keys["images.image_size"], len(seen)) == (chosen, tried)


def test_equal_time_gives_the_faster_method_more_epochs() -> None:
    plan = planned(grid("2min", "time"))
    fast, slow = (plan.epochs[name, "all images"] for name in ("fast", "slow"))
    assert fast * FAST.epoch == pytest.approx(slow * SLOW.epoch, rel=0.05)
    assert cost(grid("2min", "time"), plan) <= 120


def test_a_slower_candidate_added_later_has_the_others_time() -> None:
    made, more = grid("2min", "time"), grid("2min", "time", candidates=3)
    plan, third = planned(made), ("third", "all images")
    own = {one.name: 100 for one in more.candidates}
    extended = make_plan(more, own, dict.fromkeys(own), {**plan.step_times, third: SLOW.scaled(5)}, 1, plan)
    slow = plan.epochs["slow", "all images"] * SLOW.epoch
    assert slow - SLOW.scaled(5).epoch < extended.epochs[third] * SLOW.scaled(5).epoch <= slow * 1.05


def test_a_longer_recipe_added_later_has_the_others_time() -> None:
    third, fourth = ("third", "all images"), ("fourth", "all images")
    for budget in ("2min", "10h"):
        plan = planned(grid(budget, "time"))
        spent = plan.epochs["slow", "all images"] * SLOW.epoch
        own = {"fast": 100, "slow": 100, "third": 300}
        more = grid(budget, "time", candidates=3)
        again = make_plan(more, own, dict.fromkeys(own), {**plan.step_times, third: FAST}, 1, plan)
        assert spent - FAST.epoch < again.epochs[third] * FAST.epoch <= spent * 1.05
        again = StudyPlan.from_dict(again.to_dict())
        larger, own = grid(budget, "time", candidates=4), {**own, "fourth": 900}
        last = make_plan(larger, own, dict.fromkeys(own), {**again.step_times, fourth: SLOW}, 1, again)
        assert last.epochs[fourth] == plan.epochs["slow", "all images"]
        few = [(name, "5 a class") for name in own]
        wider = replace(larger, subsets=Subsets((1.0,), (5,)))
        paces = {**last.step_times, **dict.fromkeys(few, FAST)}
        added = make_plan(wider, own, dict.fromkeys(own), paces, 1, StudyPlan.from_dict(last.to_dict()))
        assert {added.epochs[key] for key in few} == {int(100 * plan.scale + 1e-9)}


def test_images_of_a_candidate_added_later_follow_its_recipe() -> None:
    made, more = grid(), grid(candidates=3)
    shown = {"images.image_size": 64, "images.eval_views": "one"}
    plan = replace(planned(made), image_keys=shown)
    newcomer = replace(more.candidates[2], overrides={"images.image_size": 96})
    added = Cell(newcomer, Subset("", 1), 0, 0, "x")
    assert plan.overrides(more, added) == {"images.eval_views": "one"}
    own = dict.fromkeys(("fast", "slow", "third"), 100)
    again = make_plan(more, own, dict.fromkeys(own), {**plan.step_times, ("third", "all images"): SLOW}, 1, plan)
    again = replace(again, image_keys=shown, fixed_keys={"third": ["images.image_size"]})
    again = StudyPlan.from_dict(again.to_dict())
    assert again.overrides(more, added) == {"train.epochs": 100, "images.eval_views": "one"}
    assert again.overrides(more, made.cells()[0]) == {"train.epochs": 100, **shown}
    assert (again.image_size(newcomer), again.image_size(made.baseline)) == ({}, {"images.image_size": 64})


def test_each_recipe_may_keep_its_length() -> None:
    own = {"fast": 300, "slow": 100}
    assert planned(grid(equal="recipe"), own).epochs == {("fast", "all images"): 300, ("slow", "all images"): 100}
    assert set(planned(grid(), own).epochs.values()) == {300}  # equal epochs: the longest
    shorter = planned(grid("1min", "recipe"), own).epochs
    assert shorter["fast", "all images"] == pytest.approx(3 * shorter["slow", "all images"], abs=3)


def test_a_warmup_keeps_its_share_of_a_shortened_training() -> None:
    """5 of 100 epochs are 1 of 20."""
    made = grid(epochs=20)
    plan = planned(made)
    assert plan.overrides(made, made.cells()[0]) == {"train.epochs": 20, "schedule.warmup_epochs": 1.0}
    made = grid()
    assert planned(made).overrides(made, made.cells()[0]) == {"train.epochs": 100}


def test_trainings_too_short_to_rank_are_announced() -> None:
    """10 steps an epoch: 20 epochs are 200 steps, 100 are 1,000."""
    short, long = grid(epochs=20), grid()
    assert "200 steps" in plan_note(short, planned(short))
    assert "steps" not in plan_note(long, planned(long))


def test_a_plan_survives_json_and_an_extended_study_keeps_it() -> None:
    made = grid("1min")
    plan = planned(made)
    again = StudyPlan.from_dict(plan.to_dict())
    assert again == plan
    larger = grid("1min", candidates=3)
    own = {one.name: 100 for one in larger.candidates}
    extended = make_plan(larger, own, dict.fromkeys(own), {**plan.step_times, ("third", "all images"): SLOW}, 1, again)
    assert {key: extended.epochs[key] for key in plan.epochs} == plan.epochs
    assert extended.epochs["third", "all images"] == plan.epochs["slow", "all images"]


def test_a_candidate_added_later_trains_as_long_and_a_removed_one_may_return() -> None:
    made, swapped = grid(), grid(candidates=3)
    plan = StudyPlan.from_dict(planned(made).to_dict())
    swapped = replace(swapped, candidates=swapped.candidates[1:])  # the first one left out, a third one added
    own = {"slow": 100, "third": 200}
    extended = make_plan(
        swapped, own, dict.fromkeys(own, 5.0), {**plan.step_times, ("third", "all images"): SLOW}, 1, plan
    )
    assert set(extended.epochs.values()) == {100}
    (back,) = [cell for cell in grid(seeds=(0,)).cells() if cell.candidate.name == "fast"]
    assert extended.overrides(made, back) == plan.overrides(made, back)


def test_a_candidate_added_later_has_no_length_yet() -> None:
    plan, larger = planned(grid()), grid(candidates=3, subsets=Subsets(per_class=(5,)))
    added = next(cell for cell in larger.cells() if cell.candidate.name == "third")
    assert plan.overrides(larger, added) == {"data.per_class": 5}


def test_a_tiny_share_of_a_training_is_not_zero() -> None:
    plan = StudyPlan({("fast", "all images"): 1}, {}, {"fast": 300}, {"fast": None}, scale=1 / 300)
    assert "shortened to 0.3 % by the budget of 2m" in plan_note(grid("2m"), plan)


def test_halving_costs_its_rounds() -> None:
    """Eight candidates: 8 quarters, 4 halves, 2 wholes instead of 8 wholes, the cheap one dropped first, to be safe."""
    every, halved = grid(candidates=8, equal="recipe"), grid(candidates=8, equal="recipe", halving=True)
    full, less = cost(every, planned(every)), cost(halved, planned(halved))
    quarters = (FAST.epoch + 7 * SLOW.epoch) / 4
    assert less / full == pytest.approx((quarters + 4 * SLOW.epoch / 2 + 2 * SLOW.epoch) / (4 * quarters), rel=0.05)


@pytest.mark.parametrize("epochs", [1, 2])
def test_halving_trains_nothing_twice(epochs: int) -> None:
    """A quarter and a half of two epochs are one each; of three they are one and two."""
    refused("halving trains fast for 1, then 1, then", lambda: planned(grid(halving=True, epochs=epochs)))
    halved = grid(halving=True, epochs=3)
    assert [planned(halved).overrides(halved, halved.cells(k)[0])["train.epochs"] for k in range(3)] == [1, 2, 3]


def test_halving_drops_the_worse_half_and_never_the_baseline() -> None:
    made = grid(halving=True, candidates=4)
    scores = {"fast": 0.1, "slow": 0.6, "third": 0.7, "fourth": None}
    outcomes = [
        Outcome(cell, "finished" if scores[cell.candidate.name] else "failed", "", 0.5, scores[cell.candidate.name])
        for cell in made.cells(0)
        if scores[cell.candidate.name] is not None
    ] + [Outcome(cell, "failed", "no") for cell in made.cells(0) if cell.candidate.name == "fourth"]
    found = decide(made, 0, made.subsets.each()[0], outcomes)
    assert found.kept == ("third", "fast")
    assert "third 70.0 %" in found.sentence
    assert "fourth failed" in found.sentence
    assert "dropped slow, fourth" in found.sentence


def test_amounts_say_what_they_are() -> None:
    assert [one.name for one in Subsets((1.0, 0.05), (20,)).each()] == ["20 a class", "5 %", "all images"]
    assert Subsets().each() == [Subset("", 1)]
    assert Subsets().each()[0].overrides == {}
    cell = Cell(Candidate("a", "b"), Subset("data.per_class", 20), 0, 0, "x")
    assert cell.subset.overrides == {"data.per_class": 20}


def test_a_grid_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    plain = Cell.__init__

    def counted(self: Cell, *args: object, **kwargs: object) -> None:
        built.append(1)
        plain(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Cell, "__init__", counted)
    candidates = (Candidate("a", "r"), Candidate("b", "r", {"guides.logits": {"teacher": "row:a"}}))
    made = Grid("digits", candidates, Subsets(per_class=(1, 2)), (0, 1), terms=Terms("1min"))
    plan_table(made, planned(made))
    needs = [(cell, made.needs(cell)) for cell in made.cells()]
    assert len(built) == len(made.cells())
    assert all(not found for cell, found in needs if cell.candidate.name == "a")
    assert all(
        [(one.candidate.name, one.subset, one.seed) for one in found] == [("a", cell.subset, cell.seed)]
        for cell, found in needs
        if cell.candidate.name == "b"
    )
