//! Convolutions whose kernel differs by position.

use shardax::lax::{self, ConvOptions, Padding};
use shardax::numpy as np;

use super::common::quick::setup;
use super::*;

/// One kernel at all positions, `[O, C · window, positions]`, is a convolution.
#[test]
fn conv_general_dilated_local_with_equal_kernels() -> Result<()> {
    setup();
    let x = random::normal(random::key(0), [2, 3, 7, 6]);
    let kernel = random::normal(random::key(1), [4, 3, 3, 2]);
    for (strides, padding) in [([1, 2], Padding::Same), ([2, 1], Padding::Valid)] {
        let want = lax::conv_general_dilated(&x, &kernel, strides, padding.clone(), ConvOptions::new());
        let (rows, columns) = (want.shape()[2], want.shape()[3]);
        let local = kernel.reshape([4, 18, 1, 1]).broadcast_to([4, 18, rows, columns]);
        let got = lax::conv_general_dilated_local(&x, &local, strides, padding.clone(), [3, 2], ConvOptions::new());
        assert!(np::allclose(&got, &want, 1e-5, 1e-5)?);

        // Channels last, whose kernels are `[H, W, C · window, O]`.
        let last = ConvOptions::new().channels_last(2);
        let local = local.transpose((2, 3, 1, 0));
        let got = lax::conv_general_dilated_local(x.transpose((0, 2, 3, 1)), local, strides, padding, [3, 2], last);
        assert!(np::allclose(got.transpose((0, 3, 1, 2)), want, 1e-5, 1e-5)?);
    }
    Ok(())
}

#[test]
fn conv_general_dilated_local_of_shapes_that_do_not_fit() {
    setup();
    let (x, kernels) = (np::ones([1, 1, 5]), np::ones([1, 2, 5]));
    let y = lax::conv_general_dilated_local(x, kernels, [1], Padding::Valid, [2], ConvOptions::new());
    let message = y.check().expect_err("four positions").to_string();
    assert!(message.contains("float32[1,2,5]") && message.contains("float32[1,2,4]"), "{message}");
}
