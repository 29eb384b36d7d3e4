"""Modules as JAX and XLA write them, cut down to what a test needs."""

MLP = """
module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<64x128xf32>, %arg1: tensor<128xf32>, %arg2: tensor<32x64xf32>) -> (tensor<32x128xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %arg2, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<64x128xf32>) -> tensor<32x128xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<128xf32>) -> tensor<32x128xf32>
    %2 = stablehlo.add %0, %1 : tensor<32x128xf32>
    %3 = call @relu(%2) : (tensor<32x128xf32>) -> tensor<32x128xf32>
    return %3 : tensor<32x128xf32>
  }
  func.func private @relu(%arg0: tensor<32x128xf32>) -> tensor<32x128xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<32x128xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<32x128xf32>
    return %1 : tensor<32x128xf32>
  }
}
"""

GENERIC = """
"builtin.module"() <{sym_name = "jit_f"}> ({
  "func.func"() <{arg_attrs = [{tf.aliasing_output = 0 : i32}, {}], function_type = (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>, sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg0: tensor<8x16xf32>, %arg1: tensor<16x16xf32>):
    %0 = "stablehlo.dot_general"(%arg0, %arg1) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %1 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %2 = "stablehlo.reduce"(%0, %1) <{dimensions = array<i64: 1>}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %5 = "stablehlo.add"(%arg2, %arg3) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%5) : (tensor<f32>) -> ()
    }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
    %3 = "stablehlo.broadcast_in_dim"(%2) <{broadcast_dimensions = array<i64: 0>}> : (tensor<8xf32>) -> tensor<8x16xf32>
    %4 = "stablehlo.divide"(%0, %3) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    "func.return"(%4) : (tensor<8x16xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"""

LOOP = """
module @jit_loop {
  func.func public @main(%arg0: tensor<64x64xf32>, %arg1: tensor<32x64xf32>, %arg2: tensor<i32>) -> tensor<32x64xf32> {
    %c = stablehlo.constant dense<START> : tensor<i32>
    %0:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %arg1) : tensor<i32>, tensor<32x64xf32>
    cond {
      %c_1 = stablehlo.constant dense<10> : tensor<i32>
      %1 = stablehlo.compare LT, %iterArg, LIMIT, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.dot_general %iterArg_0, %arg0, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
      %c_1 = stablehlo.constant dense<STEP> : tensor<i32>
      %2 = stablehlo.add %iterArg, %c_1 : tensor<i32>
      stablehlo.return %2, %1 : tensor<i32>, tensor<32x64xf32>
    }
    return %0#1 : tensor<32x64xf32>
  }
}
"""

CONV = """
module @jit_conv {
  func.func public @main(%arg0: tensor<8x16x16x32xf32>, %arg1: tensor<3x3x32x64xf32>) -> tensor<OUTxf32> {
    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [D, D], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<8x16x16x32xf32>, tensor<3x3x32x64xf32>) -> tensor<OUTxf32>
    return %0 : tensor<OUTxf32>
  }
}
"""

COMPILED = """
HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, entry_computation_layout={(f32[256,256]{1,0}, f32[64,256]{1,0})->f32[256,256]{1,0}}, num_partitions=4

%fused_computation (param_0.1: f32[256,256], param_1.2: f32[256,256]) -> f32[256,256] {
  %param_0.1 = f32[256,256]{1,0} parameter(0)
  %param_1.2 = f32[256,256]{1,0} parameter(1)
  %constant.1 = f32[] constant(0.01)
  %broadcast.1 = f32[256,256]{1,0} broadcast(%constant.1), dimensions={}
  %multiply.1 = f32[256,256]{1,0} multiply(%param_1.2, %broadcast.1)
  ROOT %subtract.1 = f32[256,256]{1,0} subtract(%param_0.1, %multiply.1)
}

%slicing (param_0.9: f32[4,256,256], param_1.9: s32[]) -> f32[256,256] {
  %param_0.9 = f32[4,256,256]{2,1,0} parameter(0)
  %param_1.9 = s32[] parameter(1)
  %constant.9 = s32[] constant(0)
  %dynamic-slice.9 = f32[1,256,256]{2,1,0} dynamic-slice(%param_0.9, %param_1.9, %constant.9, %constant.9), dynamic_slice_sizes={1,256,256}
  ROOT %bitcast.9 = f32[256,256]{1,0} bitcast(%dynamic-slice.9)
}

%region_0.1 (Arg_0.2: f32[], Arg_1.2: f32[]) -> f32[] {
  %Arg_0.2 = f32[] parameter(0)
  %Arg_1.2 = f32[] parameter(1)
  ROOT %add.2 = f32[] add(%Arg_0.2, %Arg_1.2)
}

ENTRY %main.9 (Arg_0.1: f32[256,256], Arg_1.1: f32[64,256], Arg_2.1: f32[4,256,256], Arg_3.1: s32[]) -> (f32[256,256], f32[256,256]) {
  %Arg_0.1 = f32[256,256]{1,0} parameter(0), metadata={op_name="w[\\'kernel\\']"}
  %Arg_1.1 = f32[64,256]{1,0} parameter(1), metadata={op_name="x"}
  %Arg_2.1 = f32[4,256,256]{2,1,0} parameter(2), metadata={op_name="stack"}
  %Arg_3.1 = s32[] parameter(3), metadata={op_name="i"}
  %custom-call.1 = (f32[256,256]{1,0}, s8[4194304]{0}) custom-call(%Arg_1.1, %Arg_1.1), custom_call_target="__cublas$gemm", metadata={op_name="jit(step)/transpose(jvp())/dot_general"}, backend_config={"operation_queue_id":"0","gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":["0"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}
  %get-tuple-element.1 = f32[256,256]{1,0} get-tuple-element(%custom-call.1), index=0
  %all-reduce-start = f32[256,256]{1,0} all-reduce-start(%get-tuple-element.1), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%region_0.1
  %all-reduce-done = f32[256,256]{1,0} all-reduce-done(%all-reduce-start)
  %fusion.2 = f32[256,256]{1,0} fusion(%Arg_2.1, %Arg_3.1), kind=kLoop, calls=%slicing
  %fusion.1 = f32[256,256]{1,0} fusion(%Arg_0.1, %all-reduce-done), kind=kLoop, calls=%fused_computation, metadata={op_name="jit(step)/sub"}
  ROOT %tuple.1 = (f32[256,256]{1,0}, /*index=1*/f32[256,256]{1,0}) tuple(%fusion.1, %fusion.2)
}
"""

ATTENTION = """
HloModule jit_f, is_scheduled=true

ENTRY %main (q: bf16[2,512,12,64], k: bf16[2,512,12,64], v: bf16[2,512,12,64]) -> bf16[2,12,512,64] {
  %q = bf16[2,12,512,64]{3,2,1,0} parameter(0)
  %k = bf16[2,12,512,64]{3,2,1,0} parameter(1)
  %v = bf16[2,12,512,64]{3,2,1,0} parameter(2)
  %cudnn-fmha = (bf16[2,12,512,64]{3,1,2,0}, u8[0]{0}) custom-call(%q, %k, %v), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"element_type":"BF16","dimensions":["2","12","512","512"]},"mask_type":"MASK"}}
  %other = bf16[2,12,512,64]{3,2,1,0} custom-call(%q), custom_call_target="my_kernel"
  %conv = (f32[8,16,16,64]{3,2,1,0}, u8[128]{0}) custom-call(%x, %w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convForward", backend_config={"cudnn_conv_backend_config":{}}
  ROOT %get-tuple-element = bf16[2,12,512,64]{3,2,1,0} get-tuple-element(%cudnn-fmha), index=0
}
""".replace(
    "  %conv",
    "  %x = f32[8,16,16,32]{3,2,1,0} parameter(3)\n  %w = f32[3,3,32,64]{3,2,1,0} parameter(4)\n  %conv",
)

ADAM = """
module @jit_step {
  func.func public @main(%arg0: tensor<1024x256xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<1024x256xf32> {tf.aliasing_output = 1 : i32}, %arg2: tensor<8x1024xf32>) -> (tensor<1024x256xf32>, tensor<1024x256xf32>) {
    %0 = stablehlo.dot_general %arg2, %arg0, contracting_dims = [1] x [0] : (tensor<8x1024xf32>, tensor<1024x256xf32>) -> tensor<8x256xf32>
    %1 = stablehlo.tanh %0 : tensor<8x256xf32>
    %2 = stablehlo.dot_general %arg2, %1, contracting_dims = [0] x [0] : (tensor<8x1024xf32>, tensor<8x256xf32>) -> tensor<1024x256xf32>
    %cst = stablehlo.constant dense<9.000000e-01> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1024x256xf32>
    %4 = stablehlo.multiply %arg1, %3 : tensor<1024x256xf32>
    %5 = stablehlo.add %4, %2 : tensor<1024x256xf32>
    %6 = stablehlo.subtract %arg0, %5 : tensor<1024x256xf32>
    return %6, %5 : tensor<1024x256xf32>, tensor<1024x256xf32>
  }
}
"""

TPU = """
HloModule jit_f, is_scheduled=true

ENTRY %main (x: f32[256,256], w: f32[4,2,64,128]) -> f32[256,256] {
  %x = f32[256,256]{1,0:T(8,128)} parameter(0)
  %w = f32[2,4,128,64]{3,2,1,0:T(8,128)} parameter(1)
  %y = f32[2,4,32,64]{3,2,1,0:T(8,128)} parameter(2)
  %copy-start = (f32[256,256]{1,0:T(8,128)S(1)}, f32[256,256]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%x)
  %copy-done = f32[256,256]{1,0:T(8,128)S(1)} copy-done(%copy-start)
  %negate = f32[256,256]{1,0:T(8,128)} negate(%copy-done)
  %convolution = f32[2,4,32,128]{3,2,1,0:T(8,128)S(1)} convolution(%y, %w), window={size=2x4 stride=1x3 lhs_dilate=2x4}, dim_labels=01bf_01oi->01bf
  ROOT %add = f32[256,256]{1,0:T(8,128)} add(%negate, %negate)
}
"""

DIVIDED = """
module @jit__lambda attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["d"=4]> {stablehlo.mesh = {axes = [{name = "d", size = 4 : i64}]}}
  func.func public @main(%arg0: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d"}]>}) -> (tensor<64x64xf32> {jax.result_info = "result"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {"d"}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"d"} (%arg1: tensor<64x16xf32>) {
      %1 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
      %2 = stablehlo.dot_general %arg1, %1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<64x16xf32>, tensor<16x64xf32>) -> tensor<64x64xf32>
      %3 = "stablehlo.all_reduce"(%2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %4 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %4 : tensor<f32>
      }) : (tensor<64x64xf32>) -> tensor<64x64xf32>
      sdy.return %3 : tensor<64x64xf32>
    } : (tensor<64x64xf32>) -> tensor<64x64xf32>
    return %0 : tensor<64x64xf32>
  }
}
"""

TOP = """
module @jit_top {
  func.func public @main(%arg0: tensor<64x64xf32>) -> (tensor<64x5xf32>, tensor<64x5xi32>) {
    %values, %indices = chlo.top_k(%arg0, k = 5) : tensor<64x64xf32> -> (tensor<64x5xf32>, tensor<64x5xi32>)
    return %values, %indices : tensor<64x5xf32>, tensor<64x5xi32>
  }
}
"""

CHOICE = """
module @jit_cond {
  func.func public @main(%arg0: tensor<i32>, %arg1: tensor<64x64xf32>) -> tensor<64x64xf32> {
    %0 = "stablehlo.case"(%arg0) ({
      %1 = stablehlo.add %arg1, %arg1 : tensor<64x64xf32>
      stablehlo.return %1 : tensor<64x64xf32>
    }, {
      %1 = stablehlo.dot_general %arg1, %arg1, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      stablehlo.return %1 : tensor<64x64xf32>
    }) : (tensor<i32>) -> tensor<64x64xf32>
    return %0 : tensor<64x64xf32>
  }
}
"""

WEIGHT_GRADIENT = """
module @jit_gradient {
  func.func public @main(%arg0: tensor<8x32x32x16xf32>, %arg1: tensor<8x16x16x64xf32>) -> tensor<3x3x16x64xf32> {
    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {stride = [1, 1], pad = [[1, 0], [1, 0]], lhs_dilate = [1, 1], rhs_dilate = [2, 2], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x32x32x16xf32>, tensor<8x16x16x64xf32>) -> tensor<3x3x16x64xf32>
    return %0 : tensor<3x3x16x64xf32>
  }
}
"""

FEATURES = """
HloModule jit_g, num_partitions=2

%body (p: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %p = (s32[], f32[8,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[8,8]{1,0} get-tuple-element(%p), index=1
  %y = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %out = (s32[], f32[8,8]{1,0}) tuple(%next, %y)
}

%cond (q: (s32[], f32[8,8])) -> pred[] {
  %q = (s32[], f32[8,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(%j, %ten), direction=LT
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%wide (w: f32[8,8]) -> f32[8,8] {
  %w = f32[8,8]{1,0} parameter(0)
  ROOT %tanh = f32[8,8]{1,0} tanh(%w)
}

ENTRY %main (x: f32[8,8], image: f32[2,8,8,4], kernel: f32[3,3,4,16], at: s32[4,1]) -> (f32[8,8], f32[8], f32[2,4,4,16], f32[4,8]) {
  %x = f32[8,8]{1,0} parameter(0)
  %image = f32[2,8,8,4]{3,2,1,0} parameter(1)
  %kernel = f32[3,3,4,16]{3,2,1,0} parameter(2)
  %at = s32[4,1]{1,0} parameter(3)
  %zero = s32[] constant(0)
  %state = (s32[], f32[8,8]{1,0}) tuple(%zero, %x)
  %loop = (s32[], f32[8,8]{1,0}) while(%state), condition=%cond, body=%body
  %last = f32[8,8]{1,0} get-tuple-element(%loop), index=1
  %flag = pred[] compare(%zero, %zero), direction=EQ
  %either = f32[8,8]{1,0} conditional(%flag, %last, %last), true_computation=%wide, false_computation=%wide
  %init = f32[] constant(0)
  %total = f32[8]{0} reduce(%either, %init), dimensions={1}, to_apply=%sum
  %conv = f32[2,4,4,16]{3,2,1,0} convolution(%image, %kernel), window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  %rows = f32[4,8]{1,0} gather(%x, %at), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
  %part = f32[4,8]{1,0} dynamic-slice(%x, %zero, %zero), dynamic_slice_sizes={4,8}
  %set = f32[8,8]{1,0} dynamic-update-slice(%x, %part, %zero, %zero)
  %pool = f32[2,4,4,4]{3,2,1,0} reduce-window(%image, %init), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=%sum
  %scatter = f32[8,8]{1,0} scatter(%set, %at, %rows), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%sum
  %fft = c64[8,8]{1,0} fft(%scatter), fft_type=FFT, fft_length={8}
  ROOT %all = (f32[8,8]{1,0}, f32[8]{0}, f32[2,4,4,16]{3,2,1,0}, f32[4,8]{1,0}) tuple(%scatter, %total, %conv, %rows)
}
"""
