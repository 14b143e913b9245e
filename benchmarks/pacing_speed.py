"""The weight solver of BSPML: `python -m benchmarks.pacing_speed`.

N is the number of samples and C the number of classes. The script measures:

- The objective that our solver and Algorithm 3 of the paper reach from the same start, over several seeds. Algorithm 3
  takes 50 N steps.
- The time of the solver, and the time and memory of computing the hardness xi+ and xi-, at the size of Stanford Online
  Products.
- The objective over the steps of a solver (Theorem 1) and over rounds of training and solving (Theorem 2).
- The mean and spread of the class weights for several lambda and mu, on the built-in drawings (Figs. 3 and 4).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import class_batch, machine, peak_bytes
from nearfar.data import add_label_noise, load_sketches
from nearfar.formatting import markdown_table
from nearfar.losses import create as create_loss
from nearfar.pacing import create
from nearfar.pacing.coordinate import coordinate_descent
from nearfar.pacing.objective import Floats, WeightProblem, maw, sdaw
from nearfar.pacing.schedule import select_easiest
from nearfar.pacing.solver import solve
from nearfar.pacing.xi import hardness
from nearfar.plotting import Style, draw_lines, new_line_figure, to_svg
from nearfar.samplers import PK

SOP = (59_551, 11_318, 512)
PASSES = (0, 1, 2, 5, 10, 20, 30, 40, 50)
OURS, CONSTANT, DECREASING = "ours", "Algorithm 3", "Algorithm 3, decreasing"
STYLES = {
    OURS: Style("blue"),
    CONSTANT: Style("vermilion", "^", 1),
    DECREASING: Style("orange", "s", 1),
}
MUS = {0.0: Style("black"), 1.0: Style("blue", "s"), 10.0: Style("green", "^")}
AGES = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)


def noisy_batch(samples: int, classes: int, dim: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return unit vectors around class centers and their labels. 20% of the labels are random; no class is empty."""
    x, labels = class_batch(samples, dim, per_class=1, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(samples) % classes
    centers = torch.randn(classes, dim, generator=generator)
    x = torch.nn.functional.normalize(x * dim**0.5 * 1.5 + centers[truth])
    wrong = torch.rand(samples, generator=generator) < 0.2
    wrong[:classes] = False
    labels = torch.where(wrong, torch.randint(classes, (samples,), generator=generator), truth)
    return x, labels


def noisy_problem(samples: int, classes: int, *, mu: float, seed: int) -> tuple[WeightProblem, Floats]:
    """Return the weight problem of a noisy batch, and the weights to start from.

    The initial weights are 1 for the easiest 80% of the samples, and 0 for the others. The age parameter of the problem
    is the value that selects these samples.
    """
    x, labels = noisy_batch(samples, classes, 64, seed=seed)
    pos, neg = hardness(x, labels)
    problem = WeightProblem.of(pos, neg, labels, age=0.0, mu=mu)
    start, age = select_easiest(problem, 0.8)
    return problem.at_age(age), start


def compare_solvers(samples: int, classes: int, *, mu: float, seed: int) -> dict[str, list[float]]:
    """Return a dict that maps the name of each of three solvers to its objective after each number of passes in PASSES.

    A pass is one sweep of our solver, or N steps of Algorithm 3.
    """
    problem, start = noisy_problem(samples, classes, mu=mu, seed=seed)
    traces: dict[str, list[float]] = {OURS: list(solve(problem, start).trace)}
    first = 0.5 * samples / problem.classes
    rates = {CONSTANT: None, DECREASING: lambda t: first / (1 + t / (2 * samples))}
    for name, rate in rates.items():
        seen = [problem.value(start)]

        def note(_: int, w: Floats, seen: list[float] = seen) -> None:
            seen.append(problem.value(w))

        coordinate_descent(problem, start, steps=PASSES[-1] * samples, rate=rate, seed=seed, trace=note)
        traces[name] = seen
    return {name: [values[min(p, len(values) - 1)] for p in PASSES] for name, values in traces.items()}


def count_wins(kinds: Sequence[tuple[int, int, float]], seeds: int) -> list[dict[str, Any]]:
    """Compare our solver with Algorithm 3 for each (N, C, mu) in `kinds`.

    "wins" is the number of seeds for which our objective is at most that of Algorithm 3, and "gap" is the mean
    difference between the objectives.
    """
    found = []
    for samples, classes, mu in kinds:
        ends = [{k: v[-1] for k, v in compare_solvers(samples, classes, mu=mu, seed=s).items()} for s in range(seeds)]
        wins = {name: sum(e[OURS] <= e[name] for e in ends) for name in (CONSTANT, DECREASING)}
        gap = {name: float(np.mean([e[name] - e[OURS] for e in ends])) for name in wins}
        found.append({"samples": samples, "classes": classes, "mu": mu, "seeds": seeds, "wins": wins, "gap": gap})
    return found


def speed(samples: int, classes: int, dim: int) -> dict[str, Any]:
    """Measure the seconds and memory of computing xi, and the seconds and sweeps of the solver, once each.

    Seconds are CPU time summed over threads, because other work on the machine would affect wall-clock time.
    """
    x, labels = noisy_batch(samples, classes, dim, seed=0)
    result: dict[str, Any] = {"samples": samples, "classes": classes, "dim": dim, "solver": []}
    found: list[tuple[Tensor, Tensor]] = []
    began = time.process_time()
    result["xi_megabytes"] = peak_bytes(lambda: found.append(hardness(x, labels))) / 2**20
    result["xi_seconds"] = time.process_time() - began
    pos, neg = found[0]
    for mu in MUS:
        problem = WeightProblem.of(pos, neg, labels, age=0.0, mu=mu)
        start, age = select_easiest(problem, 0.8)
        problem = problem.at_age(age)
        began = time.process_time()
        solution = solve(problem, start)
        took = time.process_time() - began
        line = {"mu": mu, "seconds": took, "sweeps": len(solution.trace) - 1, "residual": solution.residual}
        result["solver"].append(line | {"kept": float(solution.weights.mean())})
    return result


def rounds(number: int, *, samples: int = 1000, classes: int = 20, dim: int = 32) -> list[float]:
    """Return the objective after each round of BSPML with a linear network. By Theorem 2, the objective converges."""
    x, labels = noisy_batch(samples, classes, 2 * dim, seed=0)
    torch.manual_seed(0)
    net = nn.Linear(2 * dim, dim)
    loss = create_loss("multi-similarity", weighting="outside", threshold=1.0)
    pacer = create("self-paced", samples=samples, classes=classes, age=2.0, growth=1.1, most=3.5)
    steps, batches = torch.optim.Adam(net.parameters(), lr=1e-3), PK(labels.numpy(), classes=16, per_class=4)
    values = []
    for _ in range(number):
        for rows in batches:
            index = torch.tensor(rows)
            emb = net(x[index])
            steps.zero_grad()
            loss(emb, labels[index], weights=pacer.batch_weights(emb.detach(), labels[index], index)).backward()
            steps.step()
        with torch.no_grad():
            values.append(pacer.update(net(x), labels)["objective"])
    return values


def drawings(classes: int, each: int) -> tuple[Tensor, Tensor]:
    """Return the pixels of drawings, at half resolution and with mean 0, and labels of which 20% are wrong."""
    data = load_sketches()
    data = data.subset(np.flatnonzero((np.arange(len(data)) % 100 < each) & (data.labels < classes))).compact()
    noisy, _ = add_label_noise(data.subset(np.arange(len(data))), 0.2)
    assert data.pixels is not None
    x = torch.nn.functional.avg_pool2d(torch.tensor(data.pixels[:, None]).float(), 2).flatten(1)
    return x - x.mean(0), torch.tensor(noisy.labels)


def weights_over_age(classes: int, each: int) -> dict[str, dict[str, list[float]]]:
    """Compute the mean (MAW) and the spread (SDAW) of the class weights for each age and each mu (Figs. 3 and 4)."""
    x, labels = drawings(classes, each)
    pos, neg = hardness(x, labels)
    found: dict[str, dict[str, list[float]]] = {"maw": {}, "sdaw": {}}
    for mu in MUS:
        w = np.ones(len(x))
        for age in AGES:
            w = solve(WeightProblem.of(pos, neg, labels, age=age, mu=mu), w).weights
            found["maw"].setdefault(f"mu = {mu:g}", []).append(maw(w, labels))
            found["sdaw"].setdefault(f"mu = {mu:g}", []).append(sdaw(w, labels))
    return found


def figures(result: dict[str, Any]) -> tuple[str, str]:
    """Draw two figures and return them as SVG text: the objectives of Theorems 1 and 2, and Figs. 3 and 4."""
    trace, values = result["trace"], result["rounds"]
    traces, (left, right) = new_line_figure(2)
    draw_lines(
        left,
        PASSES,
        trace,
        STYLES,
        title="Objective over passes (Theorem 1)",
        x_label="passes: N steps, or one sweep",
        y_label="objective",
    )
    marks = sorted({min(i, len(values) - 1) for i in (0, *range(4, len(values), 5), len(values) - 1)})
    line = {"BSPML": [values[i] for i in marks]}
    draw_lines(
        right,
        [i + 1 for i in marks],
        line,
        {"BSPML": Style("blue")},
        title="Objective over rounds (Theorem 2)",
        x_label="rounds of training and solving",
        y_label="objective",
    )
    styles = {f"mu = {mu:g}": style for mu, style in MUS.items()}
    weights, panels = new_line_figure(2)
    titles = {"maw": "Mean of class weights (Fig. 3)", "sdaw": "Spread of class weights (Fig. 4)"}
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        draw_lines(axes, AGES, result["weights"][key], styles, title=title, x_label="lambda", y_label=key.upper())
    return to_svg(traces), to_svg(weights)


def report(result: dict[str, Any], command: str, names: Sequence[str]) -> str:
    """Return the text of docs/benchmarks/pacing.md."""
    sop = result["speed"]
    parts = [
        "# The weight solver of BSPML\n",
        f"Generated by `{command}` on {result['machine']}. [BSPML](../methods/bspml.md) describes the method.\n",
        "## Our solver compared with Algorithm 3 of the paper\n",
        "The solvers minimize the objective of BSPML over the sample weights. The data are N vectors in C noisy "
        "clusters, with 20% random labels. Both solvers start with weight 1 for the easiest 80% of the samples, and "
        "lambda is chosen to select these samples. Algorithm 3 takes 50 N steps with a step size of 0.5 N/C, which is "
        "constant or decreases as 1/(1 + t/(2N)) in step t. The table shows for how many seeds our objective is at "
        "most that of Algorithm 3, and by how much it is lower on average:\n",
        markdown_table(
            ["N, C, mu", "vs constant rate", "vs decreasing rate", "lower by (constant)", "lower by (decreasing)"],
            [
                [
                    f"{r['samples']:,}, {r['classes']:,}, {r['mu']:g}",
                    *[f"{r['wins'][name]} of {r['seeds']}" for name in (CONSTANT, DECREASING)],
                    *[f"{r['gap'][name]:.3g}" for name in (CONSTANT, DECREASING)],
                ]
                for r in result["races"]
            ],
        ),
        "",
    ]
    if names:
        parts.append(f"![The objective over passes and rounds]({names[0]})\n")
    parts += [
        f"## Time at N = {sop['samples']:,}, C = {sop['classes']:,}, d = {sop['dim']}\n",
        f"Computing xi+ and xi- exactly over all pairs takes {sop['xi_seconds']:.0f} CPU seconds and "
        f"{sop['xi_megabytes']:.0f} MB in addition to the embeddings. The table shows the CPU seconds of the solver. A "
        "sweep moves the weight of every sample once. The residual is 0 at a stationary point:\n",
        markdown_table(
            ["mu", "seconds", "sweeps", "residual", "mean weight"],
            [
                [f"{s['mu']:g}", f"{s['seconds']:.2f}", str(s["sweeps"]), f"{s['residual']:.0e}", f"{s['kept']:.3f}"]
                for s in sop["solver"]
            ],
        ),
        "",
        "## Figs. 3 and 4 of the paper\n",
        "The plots show the mean and the spread of the class weights on the pixels of the built-in drawings with 20% "
        "wrong labels. The mean rises with lambda, and the spread falls with mu.\n",
    ]
    if names:
        parts.append(f"![Mean and spread of the class weights]({names[1]})\n")
    return "\n".join(parts)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pacing_speed", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=6000,
        help="number of samples N for the comparison with Algorithm 3 (default 6000)",
    )
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds for the comparison (default 10)")
    parser.add_argument(
        "--large",
        type=int,
        nargs=3,
        default=list(SOP),
        metavar=("N", "C", "D"),
        help="samples, classes and dimension for the timing (default: as in SOP)",
    )
    parser.add_argument("--rounds", type=int, default=40, help="number of training rounds (default 40)")
    parser.add_argument(
        "--drawings",
        type=int,
        nargs=2,
        default=[40, 50],
        metavar=("C", "EACH"),
        help="classes and drawings per class for Figs. 3 and 4 (default 40 50)",
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--out", type=Path, metavar="STEM", help="write STEM.md, .json, .svg and .weights.svg")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    n = args.samples
    result = {
        "machine": machine(),
        "passes": PASSES,
        "races": count_wins([(n // 6, n // 30, 0.0), (n // 6, n // 30, 1.0), (n, n // 60, 1.0)], args.seeds),
        "trace": compare_solvers(n, n // 60, mu=1.0, seed=0),
        "speed": speed(*args.large),
        "rounds": rounds(args.rounds),
        "ages": AGES,
        "weights": weights_over_age(*args.drawings),
    }
    plain = ("samples", "seeds", "rounds", "threads")
    changed = {name: getattr(args, name) for name in plain if getattr(args, name) != parser.get_default(name)}
    command = "python -m benchmarks.pacing_speed" + "".join(f" --{k} {v}" for k, v in changed.items())
    names = [f"{args.out.name}.svg", f"{args.out.name}.weights.svg"] if args.out else []
    page = report(result, command, names)
    print(page)
    if args.out:
        args.out.with_name(f"{args.out.name}.md").write_text(page)
        args.out.with_name(f"{args.out.name}.json").write_text(json.dumps(result, indent=1) + "\n")
        for name, figure in zip(names, figures(result), strict=True):
            args.out.with_name(name).write_text(figure)


if __name__ == "__main__":
    main()
