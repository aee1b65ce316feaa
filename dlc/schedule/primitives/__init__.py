"""One module per primitive. Importing the package registers them all."""

from dlc.schedule.primitives.annotate import annotate as annotate
from dlc.schedule.primitives.bind import bind as bind
from dlc.schedule.primitives.cache_factor import cache_factor as cache_factor
from dlc.schedule.primitives.cache_read import cache_read as cache_read
from dlc.schedule.primitives.cache_write import cache_write as cache_write
from dlc.schedule.primitives.compute_at import compute_at as compute_at
from dlc.schedule.primitives.compute_inline import compute_inline as compute_inline
from dlc.schedule.primitives.decompose_reduction import decompose_reduction as decompose_reduction
from dlc.schedule.primitives.distribute import distribute as distribute
from dlc.schedule.primitives.duplicate import duplicate as duplicate
from dlc.schedule.primitives.fuse import fuse as fuse
from dlc.schedule.primitives.fuse_dims import fuse_dims as fuse_dims
from dlc.schedule.primitives.pad_einsum import pad_einsum as pad_einsum
from dlc.schedule.primitives.parallel import parallel as parallel
from dlc.schedule.primitives.partition import partition as partition
from dlc.schedule.primitives.reorder import reorder as reorder
from dlc.schedule.primitives.reverse_compute_at import reverse_compute_at as reverse_compute_at
from dlc.schedule.primitives.rfactor import rfactor as rfactor
from dlc.schedule.primitives.set_scope import set_scope as set_scope
from dlc.schedule.primitives.split import split as split
from dlc.schedule.primitives.subtotal import subtotal as subtotal
from dlc.schedule.primitives.tensorize import tensorize as tensorize
from dlc.schedule.primitives.transform_layout import transform_layout as transform_layout
from dlc.schedule.primitives.unroll import unroll as unroll
from dlc.schedule.primitives.vectorize import vectorize as vectorize
