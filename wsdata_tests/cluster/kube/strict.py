"""Strict field validation: a field that the API does not know is an error, not dropped."""

from typing import Any

from wsdata_tests.cluster.kube.discovery import VERSION
from wsdata_tests.cluster.kube.objects import Object, Refused


def check_known_fields(body: Object) -> None:
    """Check that a built-in kind knows every field of an object.

    Raises:
        Refused: 400, it does not, or a field is of another type; the message names it.
    """
    import kubernetes_validate  # its schemas are read for each object: not for those who need none

    try:
        kubernetes_validate.validate(body, VERSION, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return  # a kind of an operator
    except kubernetes_validate.ValidationError as error:
        at = _dotted(error.path)
        if error.validator != "additionalProperties":
            raise Refused(
                400, "BadRequest", f"strict decoding error: {at}: {error.message}"
            ) from None
        known: Any = error.schema.get("properties", {})
        unknown = [f'unknown field "{at}{"." * bool(at)}{name}"' for name in error.instance
                   if name not in known]  # fmt: skip
        raise Refused(400, "BadRequest", "strict decoding error: " + ", ".join(unknown)) from None


def _dotted(path: Any) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")
