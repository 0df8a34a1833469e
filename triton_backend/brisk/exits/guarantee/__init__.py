"""The guarantee of early answers: ``calibration`` proves it, ``audit`` watches it live."""
