"""From runs to claims: statistics of scores, and verdicts. The paper's tables are in `maskrl.recipes.published`.

from maskrl.analysis.scores import Scores
from maskrl.analysis.verdict import against_paper

scores = Scores.read("runs")                          # and what was wrong with it: scores.problems
for verdict in against_paper(scores, "mlr").tasks:    # or versus(scores, "mlr", "baseline")
    print(verdict.sentence)
"""
