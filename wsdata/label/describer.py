"""The embedded captioner: it says in words what was measured, and nothing else.

No model of language is asked. Every sentence states a measurement, hedged by how sure it is, so
the same facts always give the same words, and clips that measure differently read differently.
"""

import math
import re
from collections.abc import Iterator, Sequence

from wsdata.label.engine import CaptionAnswer, CaptionRequest, ClipFacts
from wsdata.label.looks import Looks, measure_looks

MODEL_VERSION = "describer-measured-1"

# Shares of the image network's best class: above the first it is taken for granted.
_SURE, _LIKELY, _POSSIBLE = 0.60, 0.30, 0.12
_MIN_CAMERA_CONFIDENCE = 0.25
_MAX_QUOTED_WORDS, _MAX_SHORT_WORDS = 12, 20
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_PLAIN_NAMES = {
    "nipple": "baby bottle teat",
    "hip": "rose hip",
    "water ouzel": "dipper bird",
    "maillot": "swimsuit",
    "jersey": "T-shirt",
    "black and gold garden spider": "garden spider",
}
_LIGHTS = (
    (32, "very dark"), (75, "dark"), (150, "evenly lit"), (205, "bright"), (256, "very bright"),
)  # fmt: skip
_MOTIONS = (
    (0.0004, "almost no"), (0.002, "slight"), (0.006, "moderate"), (0.015, "lively"),
    (math.inf, "rapid"),
)  # fmt: skip
_SHAPES = {"16:9": "wide", "4:3": "landscape", "1:1": "square", "9:16": "upright"}


class Describer:
    """Composes captions from measured facts."""

    version = MODEL_VERSION
    batch_tokens = 1 << 30  # nothing is sent anywhere, so nothing bounds a batch

    def request_tokens(self, request: CaptionRequest) -> int:
        """No tokens are spent."""
        del request
        return 0

    def caption(self, requests: Sequence[CaptionRequest]) -> Iterator[CaptionAnswer]:
        """Describe every clip."""
        return map(self._describe, requests)

    def _describe(self, request: CaptionRequest) -> CaptionAnswer:
        write = {"dense": dense_caption, "short": short_caption}
        looks = measure_looks(request.frames())
        return CaptionAnswer(
            texts={name: write[name](request.facts, looks) for name in request.variants}
        )


def dense_caption(facts: ClipFacts, looks: Looks | None) -> str:
    """Say everything that was measured about a clip, in some 60 to 150 words."""
    parts = [
        _opening(facts),
        _other_tags(facts),
        *_look_sentences(looks),
        _focus_sentence(facts),
        _motion_sentence(facts),
        _camera_sentence(facts),
        _people_sentence(facts),
        _text_sentence(facts),
        _sound_sentence(facts),
    ]
    return " ".join(part for part in parts if part)


def short_caption(facts: ClipFacts, looks: Looks | None) -> str:
    """Say the most telling measurements of a clip in one sentence of some 8 to 20 words."""
    if shows := _shows(facts):
        said = f"{_form(facts)} that {shows}"
    else:  # without a subject, light and movement have to tell clips apart
        light = _light(looks) if looks is not None else ""
        moves = facts.media_kind != "image" and facts.motion is not None
        movement = f" with {_amount(facts.motion or 0.0)} movement" if moves else ""
        said = f"{_form(facts, light)}{movement}"
    more = (
        _short_text_or_faces(facts),
        _short_colors(looks),
        _short_camera(facts),
        f"with {facts.sound}" if facts.sound in ("speech", "music") else "",
    )
    for part in more:
        if part and len(said.split()) + len(part.split()) <= _MAX_SHORT_WORDS:
            said = f"{said} {part}"
    return _sentence(said)


def _short_text_or_faces(facts: ClipFacts) -> str:
    if facts.text_words:
        return f'with the text "{" ".join(facts.text_words[:3])}"'
    return f"with {_faces(facts.num_faces)}" if facts.num_faces else ""


def _short_colors(looks: Looks | None) -> str:
    if looks is None or not looks.colors:
        return ""
    return f"in {_listed([color for color, _ in looks.colors[:2]])} tones"


def plain_name(tag: str) -> str:
    """The word by which people know a class whose own name means something else to them."""
    return _PLAIN_NAMES.get(tag, tag)


def _shows(facts: ClipFacts) -> str:
    """Say what the best tag says, hedged; nothing where it says too little."""
    name, share = facts.tags[0] if facts.tags else ("", 0.0)
    if share < _POSSIBLE:
        return ""
    verb = "shows" if share >= _SURE else "probably shows" if share >= _LIKELY else "may show"
    return f"{verb} {_with_article(name)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _with_article(name: str) -> str:
    name = plain_name(name)
    if re.search(r"[^aisu]s$", name):  # sunglasses, binoculars; but a bus, a compass, an iris
        return name
    # sound rather than spelling decides, for the few names where they differ
    vowel = name[:1].lower() in "aeiou" and not re.match(r"(uni|eu|one|use)", name.lower())
    return f"{'an' if vowel else 'a'} {name}"


def _listed(items: Sequence[str]) -> str:
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def _listed_or(items: Sequence[str]) -> str:
    return " or ".join(items)


def _form(facts: ClipFacts, light: str = "") -> str:
    kind = "still image" if facts.media_kind == "image" else "video clip"
    words = (light, _SHAPES.get(facts.aspect, ""), kind)
    return _with_article(" ".join(word for word in words if word))


def _opening(facts: ClipFacts) -> str:
    length = "" if facts.media_kind == "image" else f", {facts.duration_s:.1f} seconds long,"
    size = f"of {facts.width_px} by {facts.height_px} pixels"
    shows = _shows(facts) or "shows a subject that is not clear"
    return _sentence(f"{_form(facts)} {size}{length} {shows}")


def _other_tags(facts: ClipFacts) -> str:
    best = facts.tags[0][1] if facts.tags else 0.0
    if facts.tags and best < _POSSIBLE:
        return f"It resembles {_listed_or([_with_article(name) for name, _ in facts.tags[:2]])}."
    others = [_with_article(name) for name, share in facts.tags[1:4] if share >= 0.05]
    if not others:
        return ""
    if best >= _SURE:
        return f"There are weaker signs of {_listed(others)}."
    return f"It could also be taken for {_listed_or(others)}."


def _light(looks: Looks) -> str:
    return next(word for bound, word in _LIGHTS if looks.luma < bound)


def _look_sentences(looks: Looks | None) -> list[str]:
    if looks is None:
        return []
    tone = (
        "close to monochrome" if looks.saturation < 14
        else "muted in colour" if looks.saturation < 45
        else "colourful" if looks.saturation < 95
        else "strongly coloured"
    )  # fmt: skip
    spread = "low" if looks.contrast < 25 else "moderate" if looks.contrast < 60 else "strong"
    said = [f"The picture is {_light(looks)} and {tone}, with {spread} contrast."]
    if looks.colors:
        first, *rest = looks.colors[:3]
        tail = f", followed by {_listed([color for color, _ in rest])}" if rest else ""
        said.append(f"Its main colour is {first[0]}, over about {first[1]} percent{tail}.")
    places = [f"{color} gathers in the {place}" for color, place in looks.places[:2]]
    if places:
        said.append(_sentence(_listed(places)))
    if looks.brighter:
        side = "part" not in looks.brighter
        said.append(f"The {looks.brighter}{' side' if side else ''} is clearly the brightest.")
    if abs(looks.luma_change) >= 12:
        said.append(f"It grows {'brighter' if looks.luma_change > 0 else 'darker'} over time.")
    return said


def _focus_sentence(facts: ClipFacts) -> str:
    if facts.sharpness is None:
        return ""
    if facts.sharpness < 0.25:
        return "It looks soft, with little fine detail."
    return "Fine detail is sharp." if facts.sharpness >= 0.6 else "Detail is fairly sharp."


def _amount(motion: float) -> str:
    return next(word for bound, word in _MOTIONS if motion < bound)


def _motion_sentence(facts: ClipFacts) -> str:
    if facts.media_kind == "image" or facts.motion is None:
        return ""
    said = f"There is {_amount(facts.motion)} movement"
    if facts.moving_share is None or facts.motion < _MOTIONS[0][0]:
        return f"{said}."
    return f"{said}, in about {round(100 * facts.moving_share)} percent of the picture."


def _direction(facts: ClipFacts) -> str:
    if facts.camera == "pan":
        return "to the right" if facts.pan_x > 0 else "to the left"
    if facts.camera == "tilt":
        return "downward" if facts.pan_y > 0 else "upward"
    return "in" if facts.zoom > 0 else "out"


def _camera_sentence(facts: ClipFacts) -> str:
    if facts.media_kind == "image" or facts.camera_confidence < _MIN_CAMERA_CONFIDENCE:
        return ""
    said = {
        "static": "stands still",
        "pan": f"pans {_direction(facts)}",
        "tilt": f"tilts {_direction(facts)}",
        "zoom": f"moves or zooms {_direction(facts)}",
        "handheld": "is unsteady, as if held by hand",
        "complex": "moves in a way that fits no single pan, tilt or zoom",
    }.get(facts.camera or "")
    if said is None:
        return ""
    return f"The camera {'' if facts.camera_confidence >= 0.5 else 'probably '}{said}."


def _short_camera(facts: ClipFacts) -> str:
    if facts.media_kind == "image" or facts.camera_confidence < _MIN_CAMERA_CONFIDENCE:
        return ""
    said = {
        "static": "from a still camera",
        "pan": f"as the camera pans {_direction(facts)}",
        "tilt": f"as the camera tilts {_direction(facts)}",
        "zoom": f"as the camera moves {_direction(facts)}",
        "handheld": "from an unsteady camera",
        "complex": "from a moving camera",
    }
    return said.get(facts.camera or "", "")


def _faces(num_faces: int) -> str:
    count = _NUMBERS[num_faces] if num_faces < len(_NUMBERS) else "many"
    return f"{count} face{'' if num_faces == 1 else 's'}"


def _people_sentence(facts: ClipFacts) -> str:
    if facts.num_faces is None:
        return ""
    if facts.num_faces == 0:
        return "No face is visible."
    return _sentence(f"{_faces(facts.num_faces)} {'is' if facts.num_faces == 1 else 'are'} visible")


def _text_sentence(facts: ClipFacts) -> str:
    if facts.text_words:
        words = facts.text_words[:_MAX_QUOTED_WORDS]
        cut = " ..." if len(facts.text_words) > len(words) else ""
        return f'Text in the picture reads "{" ".join(words)}{cut}".'
    if facts.text_share is None:
        return ""
    return "No text was read in the picture."


def _sound_sentence(facts: ClipFacts) -> str:
    if facts.media_kind == "image" or facts.sound is None:
        return ""
    return {
        "speech": "Speech is heard.",
        "music": "Music is heard.",
        "ambience": "Ambient sound is heard, neither speech nor music.",
        "silence": "Its sound track is silent.",
        "none": "It has no sound.",
    }.get(facts.sound, "")
