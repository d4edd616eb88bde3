"""Normalizations as layers."""

from __future__ import annotations

from typing import Any

from ..diagnostics import UsageError
from ..model_builder import Builder, Tensor
from .init import Constant
from .layer import Layer, Parameter


class _Affine(Layer):
    """A scale and a bias of one element per channel, at first 1 and 0."""

    def __init__(self, channels: int, epsilon: float, bias: bool = True) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.scale = Parameter((channels,), Constant(1.0))
        self.bias = Parameter((channels,), Constant(0.0)) if bias else None

    def affine(self, b: Builder) -> list[Tensor]:
        parts = [self.scale] if self.bias is None else [self.scale, self.bias]
        return [self.tensor(b, part) for part in parts]


class BatchNorm(_Affine):
    """Over batch and space, for x [n, channels, ...] of any rank from 2 (Ioffe and Szegedy 2015).

    While training by the statistics of the batch, which also move the running ones by 1 - `momentum`; otherwise by
    those.
    """

    def __init__(self, channels: int, epsilon: float = 1e-5, momentum: float = 0.9) -> None:
        super().__init__(channels, epsilon)
        self.momentum = momentum
        self.running_mean = Parameter((channels,), Constant(0.0), trained=False)
        self.running_variance = Parameter((channels,), Constant(1.0), trained=False)

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        statistics = [self.tensor(b, each) for each in (self.running_mean, self.running_variance)]
        operands = [x, *self.affine(b), *statistics]
        if not self.training:
            y: Tensor = b.batch_normalization(*operands, epsilon=self.epsilon, momentum=self.momentum, outputs=1)
            return y
        normalized = b.batch_normalization(
            *operands, epsilon=self.epsilon, momentum=self.momentum, training_mode=1, outputs=3
        )
        result: Tensor = normalized[0]
        return result


class LayerNorm(_Affine):
    """Over the last axis of `width` elements (Ba et al. 2016)."""

    def __init__(self, width: int, epsilon: float = 1e-5, bias: bool = True) -> None:
        super().__init__(width, epsilon, bias)

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        y: Tensor = b.layer_normalization(x, *self.affine(b), axis=-1, epsilon=self.epsilon, outputs=1)
        return y


class RMSNorm(_Affine):
    """x over its root mean square along the last axis (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__(width, epsilon, bias=False)

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        y: Tensor = b.rms_normalization(x, *self.affine(b), axis=-1, epsilon=self.epsilon)
        return y


class GroupNorm(_Affine):
    """Over space and the channels of each of `groups` groups (Wu and He 2018)."""

    def __init__(self, groups: int, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__(channels, epsilon)
        if channels % groups:
            raise UsageError("nn/groups", f"{channels} channels do not split into {groups} groups")
        self.groups = groups

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        y: Tensor = b.group_normalization(x, *self.affine(b), epsilon=self.epsilon, num_groups=self.groups)
        return y


class InstanceNorm(_Affine):
    """Over space, each channel of each example on its own (Ulyanov et al. 2016)."""

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__(channels, epsilon)

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        y: Tensor = b.instance_normalization(x, *self.affine(b), epsilon=self.epsilon)
        return y
