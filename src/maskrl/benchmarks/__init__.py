"""From runs to claims: the paper's tables, statistics of scores, and verdicts.

scores = Scores.read("runs")                          # and what was wrong with it: scores.problems
for verdict in against_paper(scores, "mlr").tasks:    # or versus(scores, "mlr", "baseline")
    print(verdict.sentence)
final = scores.at().normalised()                      # one score of each run, between 0 and 1
statistics.estimate_all(final.matrix("mlr", final.tasks))
"""

from maskrl.benchmarks import statistics
from maskrl.benchmarks.published import PAPER, PublishedScore, published, published_aggregates, published_scores
from maskrl.benchmarks.scores import RunScores, Scores, ScoresError, protocol_hash, protocol_of
from maskrl.benchmarks.verdict import Verdict, Verdicts, against_paper, versus

__all__ = [
    "PAPER",
    "PublishedScore",
    "RunScores",
    "Scores",
    "ScoresError",
    "Verdict",
    "Verdicts",
    "against_paper",
    "protocol_hash",
    "protocol_of",
    "published",
    "published_aggregates",
    "published_scores",
    "statistics",
    "versus",
]
