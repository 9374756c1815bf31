"""What media may be decoded and encoded by, by name; a deployment chooses, `media.engines` does."""

DECODERS, ENCODERS = ("cpu", "nvdec"), ("x264", "h264_nvenc")
