"""ONNX models as segments that ONNX Runtime computes: read in place, cut, made into sessions.

Entry points: ``read_model_file``, ``cut_points``, ``extract``, ``open_segment``. No torch here;
the package ``onnxruntime`` is imported by the module of that name alone.
"""
