"""Inputs that a fuzzer has found, or that were once met with a traceback: no error but our own comes out of a reader."""

import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
sys.path.insert(0, str(FUZZ))
import targets  # noqa: E402

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("target", targets.TARGETS)
def test_no_input_of_the_corpus_leads_to_an_error_that_is_not_ours(target: str):
    corpus = sorted((FUZZ / "corpus" / target).iterdir())
    assert corpus
    for content in [*targets.seeds()[target], *(path.read_bytes() for path in corpus)]:
        targets.TARGETS[target](content)
