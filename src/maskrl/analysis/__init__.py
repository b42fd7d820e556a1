"""From runs to claims: statistics of scores, and verdicts. The paper's tables are in `maskrl.recipes.published`.

scores = Scores.read("runs")                          # and what was wrong with it: scores.problems
for verdict in against_paper(scores, "mlr").tasks:    # or versus(scores, "mlr", "baseline")
    print(verdict.sentence)
final = scores.at().normalised()                      # one score of each run, between 0 and 1
statistics.estimate_all(final.matrix("mlr", final.tasks))
"""

from maskrl.analysis import statistics
from maskrl.analysis.protocol import protocol_hash, protocol_of
from maskrl.analysis.reading import RunScores
from maskrl.analysis.scores import Scores, ScoresError
from maskrl.analysis.verdict import Verdict, Verdicts, against_paper, versus

__all__ = [
    "RunScores",
    "Scores",
    "ScoresError",
    "Verdict",
    "Verdicts",
    "against_paper",
    "protocol_hash",
    "protocol_of",
    "statistics",
    "versus",
]
