"""The record of proofs and the table that is made of it."""

from pathlib import Path

import pytest

from swe_rl.errors import ConfigError
from swe_rl.images.check import Proof
from swe_rl.images.record import BEGIN, END, Record, short_version
from swe_rl.task.language import read_language

PERL = read_language(Path(__file__).resolve().parents[2] / "sandboxes/perl")
WHOLE = Proof("perl", True, True, "", 1.26)


def _record(tmp_path: Path) -> Record:
    document = tmp_path / "environments.md"
    if not document.exists():
        document.write_text(f"# Head\n\n{BEGIN}\nold\n{END}\n\nTail\n")
    return Record(tmp_path / "proved.json", document)


def test_what_was_seen_is_in_the_file_and_in_the_table(tmp_path: Path) -> None:
    record = _record(tmp_path)
    record.note_image("perl", 170_400_000, 3_000_000, {"perl": "5.36.0-7+deb12u3", "libc6-dev": "2.36-9"})
    record.note_proof(WHOLE, "docker")
    record.save({"perl": PERL})
    text = (tmp_path / "environments.md").read_text()
    assert text.startswith("# Head\n") and text.endswith("\nTail\n") and "old" not in text
    assert "| perl | perl 5.36.0 | tap | 170 (3) | " in text and ", 1.3 s | – | – |" in text
    again = _record(tmp_path)
    again.save({"perl": PERL})
    assert (tmp_path / "environments.md").read_text() == text


@pytest.mark.parametrize(
    "proof", [Proof("perl", False, True), Proof("perl", True, False), Proof("perl", True, True, "left early: resolved")]
)
def test_a_failed_proof_takes_away_the_backends_entry_alone(proof: Proof, tmp_path: Path) -> None:
    record = _record(tmp_path)
    for backend in ("docker", "bubblewrap"):
        record.note_proof(WHOLE, backend)
    record.note_proof(proof, "docker")
    assert set(record.entries["perl"]["proved"]) == {"bubblewrap"}


def test_a_language_that_is_gone_is_dropped(tmp_path: Path) -> None:
    record = _record(tmp_path)
    record.note_proof(Proof("cuneiform", True, True), "docker")
    record.save({"perl": PERL})
    assert _record(tmp_path).entries == {}


def test_a_document_without_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "environments.md").write_text("# No table\n")
    with pytest.raises(ConfigError, match="marks"):
        _record(tmp_path).save({"perl": PERL})


def test_a_broken_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "proved.json").write_text("{")
    with pytest.raises(ConfigError, match="JSON"):
        _record(tmp_path)


@pytest.mark.parametrize(
    ("version", "short"),
    [("1:25.2.3+dfsg-1+deb12u4", "25.2.3"), ("5.36.0-7", "5.36.0"), ("1.27.3", "1.27.3"), ("4:12.2.0-3", "12.2.0")],
)
def test_a_version_is_shown_without_debians_parts(version: str, short: str) -> None:
    assert short_version(version) == short
