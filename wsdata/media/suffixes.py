"""Names that media files end in: what is taken for media before its content has been looked at."""

IMAGE_SUFFIXES = frozenset(
    [
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".avif", ".gif"),
        *(".bmp", ".tif", ".tiff"),
    ]
)
VIDEO_SUFFIXES = frozenset(
    [
        *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg"),
        *(".ts", ".mts", ".m2ts", ".wmv", ".flv", ".ogv", ".3gp"),
    ]
)
AUDIO_SUFFIXES = frozenset([".mp3", ".m4a", ".aac", ".wav", ".flac", ".ogg", ".opus"])
MEDIA_SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES | AUDIO_SUFFIXES
