"""Layers that build graph: a thin layer over `Builder`, with parameters under names.

from tilewright import nn, f32

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).initialize(seed=0)
module = model.to_model(x=f32["n", 64])
assert set(model.parameters()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
"""

from . import init
from .layer import Layer, Parameter
from .layers import (
    GELU,
    AveragePool2d,
    Conv1d,
    Conv2d,
    Conv3d,
    Dropout,
    Embedding,
    Flatten,
    GlobalAveragePool,
    Linear,
    MaxPool2d,
    Operator,
    ReLU,
    ReLU6,
    Residual,
    Sequential,
    Sigmoid,
    SiLU,
    Tanh,
)
from .losses import BCELoss, BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, Loss, MSELoss, NLLLoss
from .normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from .sequences import GRU, LSTM, RNN, MultiHeadAttention

__all__ = [
    "GELU", "GRU", "LSTM", "RNN", "AveragePool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm", "Conv1d", "Conv2d",
    "Conv3d", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GlobalAveragePool", "GroupNorm", "InstanceNorm",
    "L1Loss", "Layer", "LayerNorm", "Linear", "Loss", "MSELoss", "MaxPool2d", "MultiHeadAttention", "NLLLoss",
    "Operator", "Parameter", "RMSNorm", "ReLU", "ReLU6", "Residual", "Sequential", "SiLU", "Sigmoid", "Tanh", "init",
]  # fmt: skip
