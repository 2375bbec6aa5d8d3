"""Those who are told how a run goes: the terminal, TensorBoard, loggers."""
