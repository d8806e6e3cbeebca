"""The bodies of requests. A key that is not known, or a value of another type, is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from composer.errors import format_path
from composer.server.refusals import Refused
from composer.suggest import did_you_mean

MAX_BEAM = 32
MAX_LENGTH = 10_000
LINES = "texts; for several encoders a list of texts for each line"
SHOWN = 60
"""Characters of a client's word in an error."""


class Body(BaseModel):
    """What all requests have."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    model: str | None = Field(None, description="the name of a model; by default the first")


SomeBody = TypeVar("SomeBody", bound=Body)


class TranslateBody(Body):
    """The body of `/v1/translate`."""

    lines: list[str | list[str]] = Field(description=LINES)
    beam: int | None = Field(None, ge=1, le=MAX_BEAM, description=f"1 to {MAX_BEAM}")
    n_best: int = Field(1, ge=1, le=MAX_BEAM, description=f"answers of a line, 1 to {MAX_BEAM}")
    scores: bool = Field(False, description="true for the log-probability of each answer")
    prefixes: list[str] | None = Field(None, description='a text for each line, or ""')


class GenerateBody(Body):
    """The body of `/v1/generate`."""

    prompt: str | None = Field(None, description="how the text begins")
    max_length: int | None = Field(None, ge=1, le=MAX_LENGTH, description=f"1 to {MAX_LENGTH:,}")
    temperature: float | None = Field(None, gt=0, allow_inf_nan=False, description="above 0")
    top_k: int | None = Field(None, ge=1, description="a number of tokens, 1 or more")
    top_p: float | None = Field(None, gt=0, le=1, description="above 0, up to 1")
    seed: int | None = Field(None, ge=0, lt=2**31, description="an integer from 0")
    stream: bool = Field(False, description="true for events with the text as it is written")


def parse_body(kind: type[SomeBody], content_type: str, body: bytes) -> SomeBody:
    """Return the body of a request. Raises Refused.

    The type is checked since a page of another site can post `text/plain` without CORS's preflight.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        fix = "send the header `Content-Type: application/json`"
        raise Refused(422, "request", "the body is not sent as JSON", fix)
    data = parse_json(body)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        raise invalid(kind, fault["loc"], fault["msg"]) from None


def parse_json(text: bytes) -> object:
    """Return what a text in JSON says. Raises Refused."""
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        message = f"the body is no JSON from line {error.lineno}, column {error.colno}, on"
        fix = "check quotes, commas and brackets"
    except RecursionError:
        message, fix = "the body is nested too deeply", "send texts, or lists of texts"
    except ValueError:  # bytes that are no letters, or a number of thousands of digits
        message, fix = "the body cannot be read as JSON", "send JSON in UTF-8, and shorter numbers"
    raise Refused(400, "json", message, fix)


def unique_keys(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return the pairs of a JSON object as a dict. Raises Refused for a key that is there twice."""
    data: dict[str, object] = {}
    for key, value in pairs:
        if key in data:
            message = f"the key `{key[:SHOWN]}` is there twice"
            raise Refused(400, "json", message, "write it once: only one value would be read")
        data[key] = value
    return data


def invalid(kind: type[Body], place: Sequence[str | int], text: str) -> Refused:
    """Return the refusal of a body, by the place and the text of pydantic's error."""
    known = kind.model_fields
    if not place:
        fix = f"send an object with the keys {', '.join(known)}"
        return Refused(422, "request", "the body is no JSON object", fix)
    key = str(place[0])
    if key not in known:
        message = f"there is no key `{key[:SHOWN]}`{did_you_mean(key[:SHOWN], known)}"
        return Refused(422, "key", message, f"the keys are {', '.join(known)}")
    # what follows the indices names a choice between types
    path = format_path([key, *(step for step in place[1:] if isinstance(step, int))])
    message = f"`{path}`: {text[:1].lower()}{text[1:]}"
    return Refused(422, "type", message, f"`{key}`: {known[key].description}")
