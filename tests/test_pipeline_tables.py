"""The tables of the pipeline and their documentation: the one is made of the other."""

import pytest

from bstar_pipeline.tables import TABLES, columns_of


@pytest.mark.parametrize("name", TABLES)
def test_every_column_has_one_name_and_one_type(name: str) -> None:
    columns = columns_of(TABLES[name])
    names = [column for column, _ in columns]
    assert len(set(names)) == len(names)
    assert names[-2:] == ["day", "pair"]
    assert all(kind.isupper() or "<" in kind for column, kind in columns if not column.startswith("<"))
