module @jit_f {
  func.func public @main(%arg0: tensor<4096x4096xbf16>, %arg1: tensor<512x4096xbf16>) -> tensor<512x4096xbf16> {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<512x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<512x4096xbf16>
    %1 = stablehlo.tanh %0 : tensor<512x4096xbf16>
    return %1 : tensor<512x4096xbf16>
  }
}
