"""The tables of the pipeline and their documentation: the one is made of the other."""

from pathlib import Path

import pytest

from bstar_pipeline import tables_page
from bstar_pipeline.tables import TABLES

DOCUMENT = Path(__file__).parents[1] / "docs" / "pipeline.md"


def test_the_documentation_is_what_the_tables_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables_page.main(["--check", str(DOCUMENT)]) == 0, capsys.readouterr().err


def test_a_stale_document_is_found_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{tables_page.BEGIN}\nobsolete\n{tables_page.END}\nafter\n", encoding="utf-8")
    assert tables_page.main(["--check", str(path)]) == 1
    assert "make docs" in capsys.readouterr().err
    assert tables_page.main(["--write", str(path)]) == 0
    assert tables_page.main(["--check", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "obsolete" not in text
    assert all(f"`{name}`" in text for name in TABLES)


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="markers"):
        tables_page.replace("nothing here")


@pytest.mark.parametrize("name", TABLES)
def test_every_column_has_one_name_and_one_type(name: str) -> None:
    columns = tables_page.columns_of(TABLES[name])
    names = [column for column, _ in columns]
    assert len(set(names)) == len(names)
    assert not {"day", "pair"} & set(names)
    assert all(kind.isupper() or "<" in kind for column, kind in columns if not column.startswith("<"))
