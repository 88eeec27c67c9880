"""Defects of the compare-and-set loop, as edits of `handle`.

They are planted in ledger writers, in stream owners, and in the loop alone (tests/unit/test_metadata_update.py).
"""

from __future__ import annotations

ANY_VERSION = 'type("Any", (), {"__ne__": lambda *_: False, "__eq__": lambda *_: True})()'

Edit = tuple[str, str, str]


def _before_a_refusal(case: str, *lines: str) -> Edit:
    """Insert one more case of the outcomes."""
    first = "case Refused() if self.wrote:"
    text = "".join(f"            {line}\n" for line in lines)
    return ("handle", first, f"case {case}:\n{text}        {first}")


LOST_IS_FAILED = _before_a_refusal("OutcomeUnknown() if self.wrote", "self._state = _State.CURRENT", "return None")
LOST_IS_WRITTEN = _before_a_refusal(
    "OutcomeUnknown() if self.wrote", "self._state = _State.CURRENT", "return Written(self._proposed)"
)
CONFLICT_IS_OVERWRITTEN = _before_a_refusal(
    "Conflict()",
    f"self.version, self._state = {ANY_VERSION}, _State.CURRENT",
    "self.write(self._proposed, out)",
    "return None",
)
REFUSED_IS_REPEATED = _before_a_refusal(
    "Refused() if self.wrote", "self._state = _State.CURRENT", "self.write(self._proposed, out)", "return None"
)
ANY_ANSWER_COUNTS: Edit = (
    "handle",
    "(fact.token if isinstance(fact, MetadataSeen) else fact.key) != self._token",
    "isinstance(fact, TimerFired) and fact.key != self._token",
)
EQUAL_IS_WRITTEN: Edit = ("handle", " and version != self.version", "")

LOOP = {
    "a lost reply is taken for a failure": LOST_IS_FAILED,
    "a lost reply is taken for a success": LOST_IS_WRITTEN,
    "a conflict is overwritten": CONFLICT_IS_OVERWRITTEN,
    "a permanent refusal is tried again for ever": REFUSED_IS_REPEATED,
    "an answer to an earlier request is taken for the present one": ANY_ANSWER_COUNTS,
    "a value that was there before the write is taken for the write": EQUAL_IS_WRITTEN,
}
