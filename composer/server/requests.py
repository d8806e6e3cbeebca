"""The bodies of requests. A key that is not known, or a value of another type, is refused."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

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


def invalid(kind: type[Body], place: Sequence[str | int], fault: str, text: str) -> Refused:
    """Return the refusal of a body, by the place, the type and the text of pydantic's error."""
    if fault == "json_invalid":
        return Refused(400, "json", "the body is no JSON", "check quotes, commas and brackets")
    if len(place) < 2:
        fix = "send a JSON object, with the header `Content-Type: application/json`"
        return Refused(422, "request", "the body is no JSON object", fix)
    key, known = str(place[1]), kind.model_fields
    if key not in known:
        message = f"there is no key `{key[:SHOWN]}`{did_you_mean(key[:SHOWN], known)}"
        return Refused(422, "key", message, f"the keys are {', '.join(known)}")
    # what follows the indices names a choice between types
    path = format_path([key, *(step for step in place[2:] if isinstance(step, int))])
    message = f"`{path}`: {text[:1].lower()}{text[1:]}"
    return Refused(422, "type", message, f"`{key}`: {known[key].description}")
