"""The base of all tables, and the kinds of columns that they have."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import BigInteger, Index, MetaData, String, Text, text
from sqlalchemy import Table as SqlTable
from sqlalchemy.schema import SchemaItem
from sqlmodel import Field, SQLModel
from sqlmodel.main import get_column_from_field

metadata = MetaData()
_ID = 32  # hex digits of a blake2b-128 digest or a uuid


class Table(SQLModel):
    """The base of all tables. RunRow is flowengine_run, and so on.

    Rows are read and written by statements. So the classes have neither validators nor mappers,
    which would be half of the time in which they are imported, by each command.
    """

    model_config = {"defer_build": True}

    __table__: ClassVar[SqlTable]
    __table_args__: ClassVar[tuple[SchemaItem, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        columns = []
        for name, field in cls.model_fields.items():
            column = get_column_from_field(field)
            column.name = column.key = name
            columns.append(column)
        usual = f"flowengine_{cls.__name__.removesuffix('Row').lower()}"
        name = vars(cls).get("__tablename__", usual)
        cls.__table__ = SqlTable(name, metadata, *columns, *cls.__table_args__)


def word(length: int) -> Any:
    """A short text, compared byte by byte.

    With the collation of a language, the default of most servers, each comparison in an index
    costs several times as much, and may change with an update of the system's locales.
    """
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def id_column(**options: Any) -> Any:
    return Field(sa_type=word(_ID), **options)


def name_column(default: Any = "", length: int = 255, **options: Any) -> Any:
    return Field(default=default, sa_type=word(length), **options)


def text_column(default: Any = None, **options: Any) -> Any:
    return Field(default=default, sa_type=Text, **options)


def time_column(default: Any = 0, **options: Any) -> Any:
    return Field(default=default, sa_type=BigInteger, **options)


def count_column() -> Any:
    """A number that older versions do not insert."""
    return Field(default=0, sa_column_kwargs={"server_default": "0"})


def partial_index(where: str, name: str, *columns: str, unique: bool = False) -> Index:
    condition = text(where)
    return Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
