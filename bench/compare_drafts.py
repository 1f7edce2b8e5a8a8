#!/usr/bin/env python3
"""Generation with drafts against generation without, of the same program on the same model.

  bench/compare_drafts.py --spec '--spec ngram --spec-accept-fixed 0' -b 1,8,32 -- -m FILE.gguf -t 2

Speeds are measured in pairs: one run of each directly after the other, who is first changing from pair to pair; what counts
is the median of the pairs' ratios, because a shared machine is slow for both when it is slow; beside it stands the median of
the ratios of each run's fastest repeat, since whatever else runs only makes slower. Each run is a process of its
own: without drafts nothing of drafting is set up. With an acceptance of 0 it is the worst case, in which drafting can only
cost. Interrupted, it tells the pairs that it has (timeout -s INT 100 bench/compare_drafts.py …).
"""
import argparse
import json
import pathlib
import shlex
import statistics
import sys

from peer_runs import RunError, output_of

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(args, more):
    """{batch: (tokens per second, tokens per step, tokens per second of the fastest repeat)}"""
    command = [args.cachalot, "bench", "-p", "0", "-n", str(args.n), "-b", args.b, "-r", str(args.repeats), "--json", *args.model, *more]
    results = json.loads(output_of(command).stdout)["results"]
    return {result["batch"]: (result["tokens_per_second"], result["tokens_per_step"], result["tokens_per_second_max"])
            for result in results}


def quartiles(values):
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return f"{low:>7.3f} {high:>7.3f}"


def table(pairs, batches):
    print(f"{'batch':>6} {'without':>10} {'with':>10} {'ratio':>7} {'quartiles':>15} {'fastest':>8} {'quartiles':>15} {'tokens a step':>14} {'pairs':>6}")
    for batch in batches:
        without = [pair[0][batch][0] for pair in pairs]
        with_drafts = [pair[1][batch][0] for pair in pairs]
        ratios = [b / a for a, b in zip(without, with_drafts)]
        fastest = [pair[1][batch][2] / pair[0][batch][2] for pair in pairs]
        print(f"{batch:>6} {statistics.median(without):>10.1f} {statistics.median(with_drafts):>10.1f} {statistics.median(ratios):>7.3f} "
              f"{quartiles(ratios)} {statistics.median(fastest):>8.3f} {quartiles(fastest)} {statistics.median(pair[1][batch][1] for pair in pairs):>14.2f} {len(ratios):>6}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cachalot", default=str(ROOT / "build" / "cachalot"))
    parser.add_argument("--spec", required=True, help="the flags that make the difference")
    parser.add_argument("-b", default="1,8,32", help="sequences side by side, a list")
    parser.add_argument("-n", type=int, default=64, help="tokens of each")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=1, help="of each run, of which the median counts")
    parser.add_argument("model", nargs="+", help="the model, threads, device: flags of `cachalot bench`, behind --")
    args = parser.parse_args()
    pairs = []
    try:
        for i in range(args.pairs):
            both = {}
            for drafts in ((False, True) if i % 2 == 0 else (True, False)):
                both[drafts] = run(args, shlex.split(args.spec) if drafts else [])
            pairs.append((both[False], both[True]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except RunError as error:
        sys.exit(str(error))
    if pairs:
        table(pairs, sorted(pairs[0][0]))


if __name__ == "__main__":
    main()
