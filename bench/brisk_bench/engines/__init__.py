"""Engines that are measured in process, and the models and inputs they are given."""
