"""From runs to claims: `Scores.read("runs")`, then statistics and verdicts (`against_paper(scores, "mlr")`, `versus`).

The paper's tables are in `maskrl.recipes.published`.
"""
