module @many attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["i"=4]>
func.func public @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>},
        tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>},
        tensor<4x8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}, {}]>},
        tensor<16x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>},
        tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>},
        tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>},
        tensor<4xui32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>},
        tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) {
  %r:8 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}, {}]>]
      out_shardings=[<@mesh, [{"i"}, {}]>, <@mesh, [{"i"}, {}]>, <@mesh, [{"i"}, {}, {}]>, <@mesh, [{"i"}, {}]>,
                     <@mesh, [{"i"}, {}]>, <@mesh, [{"i"}, {}]>, <@mesh, [{"i"}]>, <@mesh, [{"i"}, {}]>]
      manual_axes={"i"} (%s: tensor<4x8xf32>) {
    %sum = "stablehlo.all_reduce"(%s) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %twice = stablehlo.sine %s : tensor<4x8xf32>
    %sum2 = "stablehlo.all_reduce"(%twice) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %max = "stablehlo.all_reduce"(%sum2) <{replica_groups = dense<[[0, 3], [2, 1]]> : tensor<2x2xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.maximum %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %col = stablehlo.slice %s [0:4, 0:1] : (tensor<4x8xf32>) -> tensor<4x1xf32>
    %rows = stablehlo.reshape %s : (tensor<4x8xf32>) -> tensor<1x8x4xf32>
    %rows1 = stablehlo.slice %rows [0:1, 0:8, 0:1] : (tensor<1x8x4xf32>) -> tensor<1x8x1xf32>
    %gather = "stablehlo.all_gather"(%rows1) <{all_gather_dim = 2 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 4, type = 1>, use_global_device_ids}>
        : (tensor<1x8x1xf32>) -> tensor<1x8x4xf32>
    %scatter = "stablehlo.reduce_scatter"(%twice) <{scatter_dimension = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) : (tensor<4x8xf32>) -> tensor<4x2xf32>
    %all = "stablehlo.all_to_all"(%s) <{split_dimension = 1 : i64, concat_dimension = 1 : i64, split_count = 4 : i64,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 6, type = 1>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %perm = "stablehlo.collective_permute"(%s) <{source_target_pairs = dense<[[0, 3], [2, 1]]> : tensor<2x2xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 7, type = 1>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %id = stablehlo.partition_id : tensor<ui32>
    %ids = stablehlo.reshape %id : (tensor<ui32>) -> tensor<1xui32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %loop:2 = stablehlo.while(%k = %zero, %v = %max) : tensor<i32>, tensor<4x8xf32>
      cond {
        %three = stablehlo.constant dense<3> : tensor<i32>
        %go = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %next = stablehlo.add %k, %one : tensor<i32>
        %w = "stablehlo.all_reduce"(%v) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
            channel_handle = #stablehlo.channel_handle<handle = 8, type = 1>, use_global_device_ids}> ({
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %c = stablehlo.add %a, %b : tensor<f32>
            stablehlo.return %c : tensor<f32>
        }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
        %t = stablehlo.tanh %w : tensor<4x8xf32>
        stablehlo.return %next, %t : tensor<i32>, tensor<4x8xf32>
      }
    sdy.return %sum, %max, %gather, %scatter, %all, %perm, %ids, %loop#1 : tensor<4x8xf32>, tensor<4x8xf32>,
        tensor<1x8x4xf32>, tensor<4x2xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<1xui32>, tensor<4x8xf32>
  } : (tensor<16x8xf32>) -> (tensor<16x8xf32>, tensor<16x8xf32>, tensor<4x8x4xf32>, tensor<16x2xf32>, tensor<16x8xf32>,
        tensor<16x8xf32>, tensor<4xui32>, tensor<16x8xf32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4, %r#5, %r#6, %r#7 : tensor<16x8xf32>, tensor<16x8xf32>, tensor<4x8x4xf32>, tensor<16x2xf32>, tensor<16x8xf32>, tensor<16x8xf32>, tensor<4xui32>, tensor<16x8xf32>
}
}
