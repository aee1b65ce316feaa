"""The operators that are timed: models of one node or a few, of sizes that networks have.

Each is a line of ONNX's text: inputs, results and nodes. Inputs whose names begin with `w` are
constants; integers are below the number that their names end with, 100 if they end with none. The
sizes of cases whose names end with `_open` are known at run time only.
"""

from __future__ import annotations

OPEN = "_open"  # behind the names of cases of open sizes
FUNCTIONS = (
    *("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Sin", "Floor", "Softplus"),
    *("Gelu", "HardSwish", "Elu", "Mish", "Abs", "IsNaN"),
)
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp")

TEXTS = """
add                (float[1024,1024] x, float[1024,1024] z) => (float y) { y = Add(x, z) }
add_row            (float[1024,1024] x, float[1024] w) => (float y) { y = Add(x, w) }
square             (float[1024,1024] x) => (float y) { c = Constant<value_float=2.0>() y = Pow(x, c) }
root               (float[1024,1024] x) => (float y) { c = Constant<value_float=0.5>() y = Pow(x, c) }
where              (bool[1024,1024] c, float[1024,1024] x, float[1024,1024] z) => (float y) { y = Where(c, x, z) }
cast_f16           (float[1024,1024] x) => (float16 y) { y = Cast<to=10>(x) }
cast_i64           (float[1024,1024] x) => (int64 y) { y = Cast<to=7>(x) }
range_i64          (int64 i9) => (int64 y) { e = Constant<value_int=1000000>() s = Constant<value_int=1>() y = Range(i9, e, s) }
relu_open          (float[1024,1000] x) => (float y) { y = Relu(x) }
add_row_open       (float[1024,1000] x, float[1,1000] z) => (float y) { y = Add(x, z) }
concat_open        (float[512,1000] x, float[512,1000] z) => (float y) { y = Concat<axis=-1>(x, z) }
softmax_1024       (float[1024,1024] x) => (float y) { y = Softmax(x) }
softmax_turned     (float[1,196,196,4] x) => (float y) { t = Transpose<perm=[0,3,1,2]>(x) y = Softmax<axis=-1>(t) }
softmax_197        (float[1576,197] x) => (float y) { y = Softmax(x) }
softmax_50257      (float[128,50257] x) => (float y) { y = Softmax(x) }
softmax_channels   (float[1,21,128,128] x) => (float y) { y = Softmax<axis=1>(x) }
softmax_197_heads  (float[12,197,197] x) => (float y) { y = Softmax(x) }
softmax_1000_open  (float[1024,1000] x) => (float y) { y = Softmax(x) }
gelu_open          (float[1,1024,1000] x) => (float y) { y = Gelu(x) }
log_softmax        (float[1024,1024] x) => (float y) { y = LogSoftmax(x) }
layer_norm         (float[512,768] x, float[768] w1, float[768] w2) => (float y) { y = LayerNormalization(x, w1, w2) }
instance_norm      (float[1,64,56,56] x, float[64] w1, float[64] w2) => (float y) { y = InstanceNormalization(x, w1, w2) }
arg_max_rows       (float[1024,1024] x) => (int64 y) { y = ArgMax<axis=1>(x) }
arg_max_columns    (float[1024,1024] x) => (int64 y) { y = ArgMax<axis=0>(x) }
top_10_of_50257    (float[1,50257] x) => (float y, int64 z) { k = Constant<value_ints=[10]>() y, z = TopK(x, k) }
top_5_of_rows      (float[128,1000] x) => (float y, int64 z) { k = Constant<value_ints=[5]>() y, z = TopK(x, k) }
top_100_of_8400    (float[1,8400] x) => (float y, int64 z) { k = Constant<value_ints=[100]>() y, z = TopK(x, k) }
top_10_of_int64    (int64[1,50257] i99999) => (int64 y, int64 z) { k = Constant<value_ints=[10]>() y, z = TopK(i99999, k) }
top_8_of_256       (float[512,256] x) => (float y, int64 z) { k = Constant<value_ints=[8]>() y, z = TopK(x, k) }
top_2_of_8         (float[4096,8] x) => (float y, int64 z) { k = Constant<value_ints=[2]>() y, z = TopK(x, k) }
top_1_of_40        (float[4096,40] x) => (float y, int64 z) { k = Constant<value_ints=[1]>() y, z = TopK(x, k) }
top_4_of_40        (float[4096,40] x) => (float y, int64 z) { k = Constant<value_ints=[4]>() y, z = TopK(x, k) }
top_4_of_channels  (float[1,40,64,64] x) => (float y, int64 z) { k = Constant<value_ints=[4]>() y, z = TopK<axis=1>(x, k) }
mean_of_12         (float[8192,12] x) => (float y) { a = Constant<value_ints=[1]>() y = ReduceMean<keepdims=0>(x, a) }
arg_max_of_10      (float[8192,10] x) => (int64 y) { y = ArgMax<axis=1>(x) }
divide_int32       (int32[512,1024] i99) => (int32 y) { s = Constant<value=int32 {7}>() y = Div(i99, s) }
cum_sum            (float[1024,1024] x) => (float y) { a = Constant<value_int=1>() y = CumSum(x, a) }
transpose          (float[1024,1024] x) => (float y) { y = Transpose(x) }
transpose_heads    (float[1,128,12,64] x) => (float y) { y = Transpose<perm=[0,2,1,3]>(x) }
transpose_rgb      (float[1,224,224,3] x) => (float y) { y = Transpose<perm=[0,3,1,2]>(x) }
rgb_bytes          (uint8[1,224,224,3] x) => (float y) { a = Cast<to=1>(x) s = Constant<value_float=0.017>() b = Mul(a, s) y = Transpose<perm=[0,3,1,2]>(b) }
concat_channels    (float[1,64,56,56] x, float[1,64,56,56] z) => (float y) { y = Concat<axis=1>(x, z) }
pad_reflect        (float[1,32,224,224] x) => (float y) { p = Constant<value_ints=[0,0,3,3,0,0,3,3]>() y = Pad<mode="reflect">(x, p) }
pad_reflect_open   (float[1,32,224,224] x) => (float y) { p = Constant<value_ints=[0,0,3,3,0,0,3,3]>() y = Pad<mode="reflect">(x, p) }
pad_edge           (float[1,32,224,224] x) => (float y) { p = Constant<value_ints=[0,0,3,3,0,0,3,3]>() y = Pad<mode="edge">(x, p) }
pad_reflect_line   (float[1,64,8000] x) => (float y) { p = Constant<value_ints=[0,0,5,0,0,5]>() y = Pad<mode="reflect">(x, p) }
embedding          (float[30522,768] w, int64[1,512] i30522) => (float y) { y = Gather(w, i30522) }
gather_rows        (float[1000,512] x, int64[600] i1000) => (float y) { y = Gather(x, i1000) }
compress           (float[1024,1024] x, bool[1024] c) => (float y) { y = Compress<axis=0>(x, c) }
transpose_bool     (bool[700,701] x) => (bool y) { y = Transpose(x) }
gather_elements    (float[1024,1024] x, int64[1024,1024] i1024) => (float y) { y = GatherElements<axis=1>(x, i1024) }
scatter_elements   (float[1024,1024] x, int64[1024,1024] i1024, float[1024,1024] z) => (float y) { y = ScatterElements<axis=1>(x, i1024, z) }
scatter_nd         (float[1024,1024] x, int64[10000,2] i1024, float[10000] z) => (float y) { y = ScatterND(x, i1024, z) }
scatter_nd_f16     (float16[1024,1024] x, int64[10000,2] i1024, float16[10000] z) => (float16 y) { y = ScatterND(x, i1024, z) }
non_zero           (bool[1024,1024] x) => (int64 y) { y = NonZero(x) }
max_pool_3_s2      (float[1,64,112,112] x) => (float y) { y = MaxPool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(x) }
max_pool_2_s2      (float[1,64,112,112] x) => (float y) { y = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x) }
max_pool_5         (float[1,256,20,20] x) => (float y) { y = MaxPool<kernel_shape=[5,5],pads=[2,2,2,2]>(x) }
max_pool_13        (float[1,256,20,20] x) => (float y) { y = MaxPool<kernel_shape=[13,13],pads=[6,6,6,6]>(x) }
max_pool_3         (float[1,64,56,56] x) => (float y) { y = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(x) }
max_pool_volume    (float[1,32,16,28,28] x) => (float y) { y = MaxPool<kernel_shape=[3,3,3],pads=[1,1,1,1,1,1]>(x) }
max_pool_line      (float[1,128,4000] x) => (float y) { y = MaxPool<kernel_shape=[4],strides=[4]>(x) }
max_pool_3_s2_open (float[1,64,112,112] x) => (float y) { y = MaxPool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(x) }
max_pool_2_s2_open (float[1,64,112,112] x) => (float y) { y = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x) }
max_pool_5_s3      (float[1,64,112,112] x) => (float y) { y = MaxPool<kernel_shape=[5,5],strides=[3,3],pads=[2,2,2,2]>(x) }
max_pool_line_open (float[1,128,4000] x) => (float y) { y = MaxPool<kernel_shape=[3],strides=[2],pads=[1,1]>(x) }
average_pool_3_open (float[1,64,56,56] x) => (float y) { y = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1]>(x) }
average_pool_3     (float[1,64,56,56] x) => (float y) { y = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1]>(x) }
average_pool_whole (float[1,64,56,56] x) => (float y) { y = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1],count_include_pad=1>(x) }
global_mean        (float[1,64,56,56] x) => (float y) { y = GlobalAveragePool(x) }
max_roi_pool       (float[1,64,56,56] x, int64[20,1] i1, int64[20,2] j28, int64[20,2] k28) => (float y) { a = Cast<to=1>(i1) b = Cast<to=1>(j28) c = Cast<to=1>(k28) d = Add(b, c) e = Concat<axis=1>(a, b, d) y = MaxRoiPool<pooled_shape=[7,7]>(x, e) }
resize_nearest     (float[1,64,56,56] x) => (float y) { s = Constant<value_floats=[1.0,1.0,2.0,2.0]>() y = Resize<coordinate_transformation_mode="asymmetric",nearest_mode="floor">(x, , s) }
resize_linear      (float[1,64,56,56] x) => (float y) { s = Constant<value_floats=[1.0,1.0,2.0,2.0]>() y = Resize<mode="linear">(x, , s) }
resize_corners     (float[1,64,56,56] x) => (float y) { s = Constant<value_floats=[1.0,1.0,2.0,2.0]>() y = Resize<mode="linear",coordinate_transformation_mode="align_corners">(x, , s) }
affine_grid        (float[8,2,3] x) => (float y) { s = Constant<value_ints=[8,3,64,64]>() y = AffineGrid(x, s) }
resize_antialias   (float[1,3,480,640] x) => (float y) { s = Constant<value_ints=[1,3,224,224]>() y = Resize<mode="linear",antialias=1>(x, , , s) }
product_1x4096     (float[1,4096] x, float[4096,4096] w) => (float y) { y = MatMul(x, w) }
product_128x768    (float[128,768] x, float[768,768] w) => (float y) { y = MatMul(x, w) }
product_512        (float[512,512] x, float[512,512] w) => (float y) { y = MatMul(x, w) }
product_uneven     (float[17,300] x, float[300,77] w) => (float y) { y = MatMul(x, w) }
product_one_column (float[100,1000] x, float[1000,1] w) => (float y) { y = MatMul(x, w) }
product_f16        (float16[128,768] x, float16[768,768] w) => (float16 y) { y = MatMul(x, w) }
product_of_heads   (float[12,128,64] x, float[12,64,128] z) => (float y) { y = MatMul(x, z) }
product_computed   (float[512,512] x, float[512,512] z) => (float y) { y = MatMul(x, z) }
product_bytes      (uint8[128,768] x, int8[768,768] w) => (int32 y) { y = MatMulInteger(x, w) }
conv_3x3           (float[1,64,56,56] x, float[64,64,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1]>(x, w) }
conv_3x3_s2        (float[1,128,56,56] x, float[128,128,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1],strides=[2,2]>(x, w) }
conv_3x3_7         (float[1,512,7,7] x, float[512,512,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1]>(x, w) }
conv_3x3_few       (float[1,8,320,320] x, float[16,8,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1]>(x, w) }
conv_3x3_uneven    (float[1,17,31,29] x, float[23,17,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1]>(x, w) }
conv_1x1           (float[1,64,56,56] x, float[256,64,1,1] w) => (float y) { y = Conv(x, w) }
conv_first_3       (float[1,3,224,224] x, float[32,3,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1],strides=[2,2]>(x, w) }
conv_first_7       (float[1,3,224,224] x, float[64,3,7,7] w) => (float y) { y = Conv<pads=[3,3,3,3],strides=[2,2]>(x, w) }
conv_last          (float[1,64,224,224] x, float[3,64,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1]>(x, w) }
conv_1x7           (float[1,128,17,17] x, float[128,128,1,7] w) => (float y) { y = Conv<pads=[0,3,0,3]>(x, w) }
conv_7x1           (float[1,128,17,17] x, float[128,128,7,1] w) => (float y) { y = Conv<pads=[3,0,3,0]>(x, w) }
conv_depthwise     (float[1,144,56,56] x, float[144,1,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1],group=144>(x, w) }
conv_groups_of_4   (float[1,128,56,56] x, float[128,4,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1],group=32>(x, w) }
conv_groups_of_8   (float[1,256,28,28] x, float[256,8,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1],group=32>(x, w) }
conv_dilated_2     (float[1,64,56,56] x, float[64,64,3,3] w) => (float y) { y = Conv<pads=[2,2,2,2],dilations=[2,2]>(x, w) }
conv_dilated_12    (float[1,256,33,33] x, float[256,256,3,3] w) => (float y) { y = Conv<pads=[12,12,12,12],dilations=[12,12]>(x, w) }
conv_patches       (float[1,3,224,224] x, float[768,3,16,16] w) => (float y) { y = Conv<strides=[16,16]>(x, w) }
conv_sound         (float[1,80,3000] x, float[384,80,3] w) => (float y) { y = Conv<pads=[1,1]>(x, w) }
conv_volume        (float[1,16,16,28,28] x, float[32,16,3,3,3] w) => (float y) { y = Conv<pads=[1,1,1,1,1,1]>(x, w) }
conv_transposed    (float[1,128,16,16] x, float[128,64,4,4] w) => (float y) { y = ConvTranspose<strides=[2,2],pads=[1,1,1,1]>(x, w) }
mean_of_tokens     (float[8,128,384] x) => (float y) { a = Constant<value_ints=[1]>() y = ReduceMean<keepdims=0>(x, a) }
lstm               (float[100,1,256] x, float[1,1024,256] w1, float[1,1024,256] w2) => (float y) { y = LSTM<hidden_size=256>(x, w1, w2) }
"""  # noqa: E501


def texts() -> dict[str, str]:
    """The text of each case, by its name."""
    found = {}
    for name in FUNCTIONS:
        kind = "bool" if name == "IsNaN" else "float"
        found[name.lower()] = f"(float[1024,1024] x) => ({kind} y) {{ y = {name}(x) }}"
    for name in REDUCTIONS:
        for axis, along in ((1, "rows"), (0, "columns")):
            axes = f"a = Constant<value_ints=[{axis}]>()"
            nodes = f"{{ {axes} y = {name}<keepdims=0>(x, a) }}"
            found[f"{name.lower()}_{along}"] = f"(float[1024,1024] x) => (float y) {nodes}"
    for line in TEXTS.strip().splitlines():
        name, text = line.split(maxsplit=1)
        found[name] = text
    return found
