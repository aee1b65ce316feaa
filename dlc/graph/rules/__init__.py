"""The rewrite rules, in the order in which they are tried at each node."""

from __future__ import annotations

from dlc.graph.rewrite import Rule
from dlc.graph.rules.add_into_add import add_into_add
from dlc.graph.rules.batch_norm_into_mul_add import batch_norm_into_mul_add
from dlc.graph.rules.branches_into_conv import branches_into_conv
from dlc.graph.rules.bytes_before_concat import bytes_before_concat
from dlc.graph.rules.cast_there_and_back import cast_there_and_back
from dlc.graph.rules.chosen_matrices import (
    cast_before_choice,
    chosen_to_the_right,
    transpose_before_choice,
)
from dlc.graph.rules.col2im_by_phases import col2im_by_phases
from dlc.graph.rules.conv_before_resize import conv_before_resize
from dlc.graph.rules.conv_transpose_into_conv import conv_transpose_into_conv
from dlc.graph.rules.conv_transpose_into_product import conv_transpose_into_product
from dlc.graph.rules.conv_transpose_of_a_pixel import conv_transpose_of_a_pixel
from dlc.graph.rules.convolved_integers_into_bytes import convolved_integers_into_bytes
from dlc.graph.rules.crop_kernel import crop_kernel
from dlc.graph.rules.div_into_mul import div_into_mul
from dlc.graph.rules.div_into_quotient import div_into_quotient
from dlc.graph.rules.drop_no_ops import drop_mul_by_one, drop_no_op
from dlc.graph.rules.elements_before_reshape import elements_before_reshape
from dlc.graph.rules.elements_before_transpose import elements_before_transpose
from dlc.graph.rules.expand_behind import expand_behind_elements, expand_behind_reduce
from dlc.graph.rules.expand_into_broadcast import EXPAND_INTO_BROADCAST
from dlc.graph.rules.gather_nd_into_gather import gather_nd_into_gather
from dlc.graph.rules.integers_into_bytes import integers_into_bytes
from dlc.graph.rules.integers_into_floats import integers_into_floats
from dlc.graph.rules.known_comparison import known_comparison
from dlc.graph.rules.known_truth import known_truth_in_logic, known_truth_in_where
from dlc.graph.rules.mul_into_mul import mul_into_mul
from dlc.graph.rules.one_before_moves import one_before_reshape, one_before_transpose
from dlc.graph.rules.pad_into_conv import pad_into_conv
from dlc.graph.rules.pad_into_pool import pad_into_pool
from dlc.graph.rules.parts_into_gelu import PARTS_INTO_GELU
from dlc.graph.rules.parts_into_hard_swish import (
    CLIP_INTO_HARD_SIGMOID,
    hard_sigmoid_into_hard_swish,
)
from dlc.graph.rules.parts_into_layer_norm import PARTS_INTO_LAYER_NORM
from dlc.graph.rules.parts_into_mish import parts_into_mish
from dlc.graph.rules.parts_into_rms_norm import PARTS_INTO_RMS_NORM, scale_into_rms_norm
from dlc.graph.rules.parts_into_softmax import parts_into_softmax
from dlc.graph.rules.pool_before_conv import POOL_BEFORE_CONV
from dlc.graph.rules.pool_into_reduce import pool_into_reduce
from dlc.graph.rules.pow_into_products import pow_into_products
from dlc.graph.rules.scale_before_conv import scale_before_conv
from dlc.graph.rules.scale_into_conv import scale_into_conv
from dlc.graph.rules.scale_into_conv_transpose import scale_into_conv_transpose
from dlc.graph.rules.scale_into_layer_norm import bias_into_layer_norm, scale_into_layer_norm
from dlc.graph.rules.scale_into_left import scale_into_left
from dlc.graph.rules.scale_into_matmul import scale_into_matmul
from dlc.graph.rules.scale_through_bias import scale_through_bias
from dlc.graph.rules.scale_toward_weights import scale_before_move, scale_into_operand
from dlc.graph.rules.shape_into_shape import (
    concat_into_concat,
    reshape_into_reshape,
    slice_into_slice,
    transpose_into_reshape,
    transpose_into_transpose,
)
from dlc.graph.rules.sigmoid_into_silu import scaled_sigmoid_into_silu, sigmoid_into_silu
from dlc.graph.rules.slice_behind_reshape import one_behind_reshape, slice_behind_reshape
from dlc.graph.rules.slices_into_conv import slices_into_conv
from dlc.graph.rules.sub_into_add import sub_into_add
from dlc.graph.rules.tiny_weights_into_zeros import (
    tiny_bias_into_zeros,
    tiny_weights_into_zeros,
)
from dlc.graph.rules.transpose_behind_reshape import transpose_behind_reshape
from dlc.graph.rules.transpose_into_channel_shuffle import transpose_into_channel_shuffle
from dlc.graph.rules.units_before_moves import units_before_slice, units_before_transpose
from dlc.graph.rules.units_before_product import units_before_product
from dlc.graph.rules.where_into_nan_to_zero import where_into_nan_to_zero

SHAPE_RULES: tuple[Rule, ...] = (
    drop_no_op,
    reshape_into_reshape,
    transpose_into_transpose,
    transpose_into_reshape,
    elements_before_transpose,
    elements_before_reshape,
    slice_into_slice,
    concat_into_concat,
    one_before_transpose,
    one_before_reshape,
    slice_behind_reshape,
    one_behind_reshape,
    transpose_behind_reshape,
    units_before_transpose,
    units_before_slice,
    *EXPAND_INTO_BROADCAST,
    expand_behind_elements,
    expand_behind_reduce,
)
"""What simplify_shapes applies: nothing here computes."""

PATTERN_RULES: tuple[Rule, ...] = (
    *PARTS_INTO_GELU,
    *CLIP_INTO_HARD_SIGMOID,
    hard_sigmoid_into_hard_swish,
    sigmoid_into_silu,
    scaled_sigmoid_into_silu,
    parts_into_mish,
    parts_into_softmax,
    *PARTS_INTO_LAYER_NORM,
    scale_into_layer_norm,
    bias_into_layer_norm,
    *PARTS_INTO_RMS_NORM,
    scale_into_rms_norm,
    slices_into_conv,
    transpose_into_channel_shuffle,
    where_into_nan_to_zero,
)
"""What apply_rules applies first: whole patterns, before small steps break them."""

STEP_RULES: tuple[Rule, ...] = (
    integers_into_bytes,
    convolved_integers_into_bytes,
    integers_into_floats,
    cast_there_and_back,
    known_comparison,
    known_truth_in_logic,
    known_truth_in_where,
    bytes_before_concat,
    batch_norm_into_mul_add,
    gather_nd_into_gather,
    chosen_to_the_right,
    transpose_before_choice,
    cast_before_choice,
    drop_mul_by_one,
    sub_into_add,
    div_into_mul,
    pow_into_products,
    scale_into_conv,
    scale_into_conv_transpose,
    scale_before_conv,
    scale_into_matmul,
    scale_through_bias,
    scale_before_move,
    scale_into_operand,
    scale_into_left,
    units_before_product,
    branches_into_conv,
    add_into_add,
    mul_into_mul,
    pad_into_conv,
    crop_kernel,
    pad_into_pool,
    pool_into_reduce,
    conv_transpose_of_a_pixel,
    conv_transpose_into_conv,
    conv_transpose_into_product,
    col2im_by_phases,
    tiny_weights_into_zeros,
    tiny_bias_into_zeros,
    div_into_quotient,
)
"""What apply_rules applies then: small steps that move constants into weights."""

LAST_RULES: tuple[Rule, ...] = (*POOL_BEFORE_CONV, conv_before_resize)
"""What apply_rules applies at the end: single operators become several, and patterns are gone."""
