"""The graph passes, in the order in which they run."""

from __future__ import annotations

from dlc.graph.pass_ import GraphPass
from dlc.graph.passes.add_up_in_order import add_up_in_order
from dlc.graph.passes.apply_rules import apply_rules
from dlc.graph.passes.branch_on_one_query import branch_on_one_query
from dlc.graph.passes.choose_layouts import choose_layouts
from dlc.graph.passes.concat_by_offset import concat_by_offset
from dlc.graph.passes.fold_constants import fold_constants
from dlc.graph.passes.fuse_groups import fuse_groups
from dlc.graph.passes.group_chosen_rows import group_chosen_rows
from dlc.graph.passes.group_nodes import group_nodes
from dlc.graph.passes.halve_floats import halve_floats
from dlc.graph.passes.keep_few_bits import keep_few_bits
from dlc.graph.passes.lift_constants import lift_constants
from dlc.graph.passes.merge_equal_nodes import merge_equal_nodes
from dlc.graph.passes.merge_parallel_matmuls import merge_parallel_matmuls
from dlc.graph.passes.narrow_weights import narrow_weights
from dlc.graph.passes.number_texts import number_texts
from dlc.graph.passes.pack_matmul_weights import pack_matmul_weights
from dlc.graph.passes.pad_bytes import pad_bytes
from dlc.graph.passes.remove_dead_nodes import remove_dead_nodes
from dlc.graph.passes.requantize import requantize
from dlc.graph.passes.separate_scales import separate_scales
from dlc.graph.passes.share_halos import share_halos
from dlc.graph.passes.shorten_functions import shorten_functions
from dlc.graph.passes.simplify_shapes import simplify_shapes
from dlc.graph.passes.sink_constants import sink_constants
from dlc.graph.passes.slice_early import slice_early
from dlc.graph.passes.sort_by_digits import sort_by_digits
from dlc.graph.passes.split_dilation import split_dilation
from dlc.graph.passes.stack_grouped_queries import stack_grouped_queries
from dlc.graph.passes.step_through_trees import step_through_trees
from dlc.graph.passes.store_narrow import store_narrow
from dlc.graph.passes.tabulate_bytes import tabulate_bytes
from dlc.graph.passes.turn_lines import turn_lines
from dlc.graph.passes.use_byte_products import use_byte_products
from dlc.graph.passes.use_matrix_engine import use_matrix_engine
from dlc.graph.passes.use_pair_products import use_pair_products
from dlc.graph.passes.use_winograd import use_winograd
from dlc.graph.passes.widen_halves import widen_halves

PIPELINE: tuple[GraphPass, ...] = (
    number_texts,
    remove_dead_nodes,  # nothing below spends time on what nobody reads
    sink_constants,
    step_through_trees,
    keep_few_bits,
    separate_scales,
    fold_constants,
    sink_constants,  # again: what loops read was folded, as the transposes of their weights
    fold_constants,  # again: what loops make of it, as differences of bytes and their zero
    simplify_shapes,
    widen_halves,
    apply_rules,
    merge_equal_nodes,
    slice_early,
    halve_floats,
    widen_halves,  # again: what halve_floats rounded
    sort_by_digits,
    add_up_in_order,
    fold_constants,  # again: what rules left as operations on constants, as matrices of weights
    stack_grouped_queries,
    merge_parallel_matmuls,
    pack_matmul_weights,
    choose_layouts,
    fold_constants,  # again: what layouts left as operations on constants
    simplify_shapes,  # again: reshapes of single pixels between blocked and planar
    merge_equal_nodes,  # again: equal constants and pads, made once for each reader
    share_halos,
    pad_bytes,
    concat_by_offset,
    use_matrix_engine,
    use_byte_products,
    requantize,
    tabulate_bytes,
    turn_lines,
    split_dilation,
    use_winograd,
    use_pair_products,
    narrow_weights,
    group_chosen_rows,
    shorten_functions,
    remove_dead_nodes,  # again: nothing unused is compiled
    store_narrow,
    lift_constants,
    fuse_groups,
    branch_on_one_query,
)

PLAIN: tuple[GraphPass, ...] = (
    number_texts,
    remove_dead_nodes,
    sink_constants,
    step_through_trees,
    lift_constants,
    group_nodes,
)
"""What lowering needs, and nothing that optimises: to compare with."""
