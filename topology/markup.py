"""XML as small trees that know their lines; entities and whatever points outside of the file are refused."""

from __future__ import annotations

import xml.sax
import xml.sax.handler
import xml.sax.xmlreader
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import defusedxml
import defusedxml.sax

from collectives.topology.graph import TopologyError

MAX_DEPTH = 200
"""Elements within each other, more than any machine needs and few enough to walk by recursion."""


@dataclass
class Element:
    """One element.

    Attributes:
        tag: its name.
        attributes: as text.
        line: on which it opens, from 1.
        source: the file.
        children: in order.
        text: what stands between its tags, the children's text apart.
    """

    tag: str
    attributes: Mapping[str, str]
    line: int
    source: str
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def fail(self, message: str) -> TopologyError:
        """The error to raise for what is wrong with this element."""
        return TopologyError(message, self.source, self.line)

    def get(self, name: str) -> str | None:
        """An attribute; None if it is absent or empty."""
        return self.attributes.get(name, "").strip() or None

    def need(self, name: str) -> str:
        """An attribute that must be there. Raises TopologyError otherwise."""
        value = self.get(name)
        if value is None:
            raise self.fail(f"<{self.tag}> without {name}")
        return value

    def integer(self, name: str) -> int | None:
        """An attribute that is a whole number (or 0x and hexadecimal digits); None if it is absent."""
        value = self.get(name)
        try:
            return None if value is None else int(value, 16 if value.lower().startswith("0x") else 10)
        except ValueError:
            raise self.fail(f'<{self.tag}> has {name}="{value}", where a whole number is expected') from None

    def need_integer(self, name: str) -> int:
        """An attribute that must be there and a whole number."""
        self.need(name)
        value = self.integer(name)
        assert value is not None
        return value

    def all(self, *tags: str) -> Iterator[Element]:
        """The children of those names."""
        return (child for child in self.children if child.tag in tags)

    def walk(self) -> Iterator[Element]:
        """This element and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class _Builder(xml.sax.handler.ContentHandler):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.root: Element | None = None
        self.open: list[Element] = []
        self.locator: xml.sax.xmlreader.Locator | None = None

    def setDocumentLocator(self, locator: xml.sax.xmlreader.Locator) -> None:  # noqa: N802
        self.locator = locator

    def startElement(self, name: str, attrs: xml.sax.xmlreader.AttributesImpl) -> None:  # noqa: N802
        line = (self.locator.getLineNumber() if self.locator else None) or 1
        element = Element(name, dict(attrs.items()), line, self.source)
        if self.open:
            self.open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self.open.append(element)
        if len(self.open) > MAX_DEPTH:
            raise element.fail(f"elements within each other more than {MAX_DEPTH} deep")

    def endElement(self, name: str) -> None:  # noqa: N802
        self.open.pop()

    def skippedEntity(self, name: str) -> None:  # noqa: N802
        line = self.locator.getLineNumber() if self.locator else None
        raise TopologyError(f"the entity {name}: entities are refused", self.source, line)

    def characters(self, content: str) -> None:
        if self.open:
            self.open[-1].text += content


def parse(text: str | bytes, source: str = "", doctype: bool = False) -> Element:
    """The root element of an XML text.

    Args:
        text: the whole file.
        source: its name, for errors.
        doctype: whether a document type may be named; it is not fetched, and may not declare entities. (A
            name alone counts as an external reference, so these are not forbidden then; the parser leaves the
            file's alone, and no entity can be declared that would be another.)

    Raises:
        TopologyError: it is not well-formed, is too deep, or has entities, document types or references to
            what is outside of it.
    """
    builder = _Builder(source)
    try:
        data = text.encode() if isinstance(text, str) else text
        defusedxml.sax.parseString(data, builder, forbid_dtd=not doctype, forbid_external=not doctype)
    except TopologyError:
        raise
    except defusedxml.DefusedXmlException as error:
        line = builder.locator.getLineNumber() if builder.locator else None
        raise TopologyError(
            f"{type(error).__name__}: document types, entities and external references are refused",
            source,
            line,
        ) from None
    except xml.sax.SAXParseException as error:
        raise TopologyError(
            f"not well-formed XML: {error.getMessage()}", source, error.getLineNumber()
        ) from None
    except (ValueError, LookupError) as error:  # lone surrogates, encodings that the parser does not know
        raise TopologyError(f"not readable as XML: {error}", source) from None
    if builder.root is None:
        raise TopologyError("no XML element in it", source)
    return builder.root
