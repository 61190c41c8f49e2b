"""Front end for documents: workflows that are written as YAML. Pure.

`yaml_reader` reads the text to nodes with places, `structure` validates them by `models`, `reader`
builds program JSON, `compiler` links it and locates problems in the text.
"""

from flowengine.documents.compiler import CompiledDocument, compile_document, link_document
from flowengine.documents.models import document_schema
from flowengine.documents.reader import SUFFIXES, ReadDocument, name_of, read_document
from flowengine.documents.yaml_reader import MAX_BYTES

__all__ = [
    "MAX_BYTES",
    "SUFFIXES",
    "CompiledDocument",
    "ReadDocument",
    "compile_document",
    "document_schema",
    "link_document",
    "name_of",
    "read_document",
]
