//! Control flow, transforms of Fourier, images, `lax`, and linear algebra.

use super::*;

table! {
    "control_flow::associative_scan" => |c| same!(c;
        AssociativeScanOptions::new().reverse(c.i > 0).axis(c.i).associative_scan(|a: Array, b: Array| a + b, c.x.clone()),
        associative_scan(|a: Array, _: Array| a.get(0), c.x.clone()),
        AssociativeScanOptions::new().axis(c.i).associative_scan(|a: Array, _: Array| a.expand_dims(0), c.x.clone())
    );
    "control_flow::cond" => |c| same!(c;
        cond(&c.mask, |x: Array| -x, |x: Array| x, c.x.clone()),
        cond(c.i > 0, |x: Array| x.sum(..), |x: Array| x, c.x.clone()),
        cond(&c.y, |x: Array| x.astype(DType::F32), |x: Array| x, c.x.clone())
    );
    "control_flow::fori_loop" => |c| same!(c;
        fori_loop(c.i, c.n, |_, x: Array| x, c.x.clone()),
        fori_loop(0, &c.y, |i, x: Array| x + i, c.x.clone()),
        fori_loop(0, 3, |_, x: Array| x.sum(..), c.x.clone())
    );
    "control_flow::map" => |c| shardax::control_flow::map(|x: Array| x.sum(..), c.x.clone());
    "control_flow::scan" => |c| same!(c;
        scan(|s: Array, x: Array| (s * x, ()), c.y.clone(), c.x.clone()).map(|(s, ())| s),
        scan(|s: Array, x: Array| (x, s), c.y.clone(), c.x.clone())
    );
    "control_flow::scan_n" => |c| scan_n(|s: Array| (&s * 2, s), c.x.clone(), c.n);
    "control_flow::switch" => |c| switch(&c.places, (|x: Array| x, |x: Array| -x), c.x.clone());
    "control_flow::while_loop" => |c| same!(c;
        while_loop(|x: Array| x.greater(0), |x: Array| x - 1, c.x.clone()),
        while_loop(|x: Array| x.sum(..).less(c.i), |x: Array| x.astype(c.dtype), c.y.clone())
    );
    "fft::dct" => |c| same!(c; scipy::fft::dct(&c.x), c.transform().dct(&c.x));
    "fft::dctn" => |c| same!(c; scipy::fft::dctn(&c.x), c.transform().dctn(&c.x));
    "fft::fft" => |c| same!(c; fft::fft(&c.x), c.transform().fft(&c.x));
    "fft::fft2" => |c| same!(c; fft::fft2(&c.x), c.transform().fft2(&c.x));
    "fft::fftfreq" => |c| fft::fftfreq(c.n, c.f);
    "fft::fftn" => |c| same!(c; fft::fftn(&c.x), c.transform().fftn(&c.x));
    "fft::fftshift" => |c| same!(c; fft::fftshift(&c.x, c.i), fft::fftshift(&c.x, ..));
    "fft::hfft" => |c| same!(c; fft::hfft(&c.x), c.transform().hfft(&c.x));
    "fft::idct" => |c| same!(c; scipy::fft::idct(&c.x), c.transform().idct(&c.x));
    "fft::idctn" => |c| same!(c; scipy::fft::idctn(&c.x), c.transform().idctn(&c.x));
    "fft::ifft" => |c| same!(c; fft::ifft(&c.x), c.transform().ifft(&c.x));
    "fft::ifft2" => |c| same!(c; fft::ifft2(&c.x), c.transform().ifft2(&c.x));
    "fft::ifftn" => |c| same!(c; fft::ifftn(&c.x), c.transform().ifftn(&c.x));
    "fft::ifftshift" => |c| same!(c; fft::ifftshift(&c.x, [c.i, 0]), fft::ifftshift(&c.x, ..));
    "fft::ihfft" => |c| same!(c; fft::ihfft(&c.x), c.transform().ihfft(&c.x));
    "fft::irfft" => |c| same!(c; fft::irfft(&c.x), c.transform().irfft(&c.x));
    "fft::irfft2" => |c| same!(c; fft::irfft2(&c.x), c.transform().irfft2(&c.x));
    "fft::irfftn" => |c| same!(c; fft::irfftn(&c.x), c.transform().irfftn(&c.x));
    "fft::rfft" => |c| same!(c; fft::rfft(&c.x), c.transform().rfft(&c.x));
    "fft::rfft2" => |c| same!(c; fft::rfft2(&c.x), c.transform().rfft2(&c.x));
    "fft::rfftfreq" => |c| fft::rfftfreq(c.n, c.f);
    "fft::rfftn" => |c| same!(c; fft::rfftn(&c.x), c.transform().rfftn(&c.x));
    "image::resize" => |c| same!(c;
        image::resize(&c.x, c.dims(), ResizeMethod::Lanczos3),
        image::resize(&c.x, c.sizes(), ResizeMethod::Nearest),
        image::resize(&c.x, c.sizes(), ResizeOptions::new(ResizeMethod::Cubic).antialias(false))
    );
    "image::scale_and_translate" => |c| {
        image::scale_and_translate(&c.x, c.sizes(), &[c.i], &c.y, &c.x, ResizeMethod::Linear)
    };
    "lax::approx_max_k" => |c| lax::approx_max_k(&c.x, c.n);
    "lax::approx_min_k" => |c| lax::TopKOptions::new().axis(c.i).approx_min_k(&c.x, c.n);
    "lax::bitcast_convert_type" => |c| lax::bitcast_convert_type(&c.x, c.dtype);
    "lax::broadcast" => |c| lax::broadcast(&c.x, &[c.n, 1]);
    "lax::broadcast_in_dim" => |c| lax::broadcast_in_dim(&c.x, &[c.n, 3], &[c.i.unsigned_abs() as usize]);
    "lax::iota_of_size" => |c| lax::iota(c.dtype, c.n.min(64));
    "lax::broadcasted_iota" => |c| same!(c;
        lax::broadcasted_iota(c.dtype, c.dims(), c.i),
        lax::broadcasted_iota(c.dtype, [c.n], c.n)
    );
    "lax::cholesky" => |c| lax::cholesky(&c.x);
    "lax::clamp" => |c| same!(c; lax::clamp(c.i, &c.x, c.f), lax::clamp(&c.y, &c.x, c.n));
    "lax::collapse" => |c| same!(c; lax::collapse(&c.x, c.i, None), lax::collapse(&c.x, 0, c.i));
    "lax::complex" => |c| lax::complex(&c.x, &c.y);
    "lax::concatenate" => |c| same!(c; lax::concatenate(&c.both(), c.i), lax::concatenate(&c.both(), c.n), lax::concatenate(&[], 0));
    "lax::conv" => |c| lax::conv(&c.x, &c.y, [c.n], c.padding());
    "lax::conv_general_dilated" => |c| same!(c;
        lax::conv_general_dilated(&c.x, &c.y, [1], c.padding(), ConvOptions::new().feature_group_count(c.n)),
        lax::conv_general_dilated(&c.x, &c.x, [c.n], c.padding(), ConvOptions::new().lhs_dilation([c.n]).rhs_dilation([c.n])),
        lax::conv_general_dilated(&c.x, &c.x, [1], c.padding(), ConvOptions::new().batch_group_count(c.n)),
        lax::conv_general_dilated(&c.x, &c.x, [1], c.padding(), ConvOptions::new().preferred_element_type(c.dtype)),
        lax::conv_general_dilated(&c.x, &c.x, [1], c.padding(), ConvOptions::new().dimension_numbers("NNé", "", "OI"))
    );
    "lax::conv_general_dilated_patches" => |c| {
        lax::conv_general_dilated_patches(&c.x, [c.n], [c.n], c.padding(), ConvOptions::new().channels_last(1))
    };
    "lax::conv_general_dilated_local" => |c| {
        lax::conv_general_dilated_local(&c.x, &c.y, [c.n], c.padding(), [c.n], ConvOptions::new().channels_last(1))
    };
    "lax::conv_transpose" => |c| lax::conv_transpose(&c.x, &c.y, [c.n], c.padding(), ConvOptions::new());
    "lax::convert_element_type" => |c| lax::convert_element_type(&c.x, c.dtype);
    "lax::cumlogsumexp" => |c| lax::CumulativeOptions::new().reverse(c.i > 0).cumlogsumexp(&c.x, c.i);
    "lax::cummax" => |c| lax::CumulativeOptions::new().reverse(c.i > 0).cummax(&c.x, c.i);
    "lax::cummin" => |c| lax::CumulativeOptions::new().reverse(true).cummin(&c.x, c.n);
    "lax::cumprod" => |c| lax::cumprod(&c.x, c.i);
    "lax::cumsum" => |c| lax::CumulativeOptions::new().reverse(c.i > 0).cumsum(&c.x, c.n);
    "lax::div" => |c| lax::div(&c.x, &c.y);
    "lax::dot_general" => |c| same!(c;
        lax::dot_general(&c.x, &c.y, (&[c.n], &[0]), (&[], &[]), Some(c.dtype)),
        lax::dot_general(&c.x, &c.x, (&[0, 0], &[0, 0]), (&[c.n], &[c.n]), None)
    );
    "lax::dynamic_index_in_dim" => |c| same!(c;
        lax::dynamic_index_in_dim(&c.x, &c.places, c.i),
        lax::dynamic_index_in_dim(&c.x, c.n, 0)
    );
    "lax::dynamic_slice" => |c| lax::dynamic_slice(&c.x, &c.starts(), &c.sizes());
    "lax::dynamic_slice_in_dim" => |c| lax::dynamic_slice_in_dim(&c.x, c.i, c.n, c.i);
    "lax::dynamic_update_index_in_dim" => |c| lax::dynamic_update_index_in_dim(&c.x, &c.y, &c.places, c.i);
    "lax::dynamic_update_slice" => |c| lax::dynamic_update_slice(&c.x, &c.y, &c.starts());
    "lax::dynamic_update_slice_in_dim" => |c| lax::dynamic_update_slice_in_dim(&c.x, &c.y, c.n, c.i);
    "lax::expand_dims" => |c| lax::expand_dims(&c.x, [c.i, 0]);
    "lax::gather" => |c| {
        let dims = GatherDimensionNumbers {
            offset_dims: vec![0],
            collapsed_slice_dims: vec![c.n],
            start_index_map: vec![c.n],
            ..Default::default()
        };
        same!(c;
            lax::gather(&c.x, &c.places, dims, &c.sizes(), c.mode()),
            lax::gather(&c.x, &c.places, GatherDimensionNumbers::default(), &c.sizes(), c.mode())
        )
    };
    "lax::index_in_dim" => |c| same!(c; lax::index_in_dim(&c.x, c.i, 0, true), lax::index_in_dim(&c.x, 0, c.i, false));
    "lax::lu" => |c| lax::linalg::lu(&c.x);
    "lax::optimization_barrier" => |c| lax::optimization_barrier((c.x.clone(), c.y.clone()));
    "lax::pad" => |c| same!(c;
        lax::pad(&c.x, &c.y, &c.sizes().iter().map(|&n| (i64::from(c.i), n as i64, i64::from(c.i))).collect::<Vec<_>>()),
        lax::pad(&c.x, &Array::from(c.i).astype(c.x.dtype()), &c.sizes().iter().map(|_| (i64::MAX, i64::MAX, i64::MAX)).collect::<Vec<_>>()),
        lax::pad(&c.x, &Array::from(c.i).astype(c.x.dtype()), &c.sizes().iter().map(|_| (i64::MIN, 1, 0)).collect::<Vec<_>>())
    );
    "lax::qr" => |c| lax::linalg::qr(&c.x, if c.i > 0 { lax::linalg::QrMode::Complete } else { lax::linalg::QrMode::Reduced });
    "lax::reduce" => |c| same!(c; lax::reduce(&c.x, c.i, |a, b| a * b, c.i), lax::reduce(&c.x, &c.y, |a, b| a + b, ..));
    "lax::rng_bit_generator" => |c| lax::rng_bit_generator(&c.x, &[c.n], c.dtype, lax::RandomAlgorithm::Default);
    "lax::ragged_dot" => |c| lax::ragged_dot(&c.x, &c.y, &c.places);
    "lax::ragged_dot_general" => |c| lax::ragged_dot_general(&c.x, &c.y, &c.places, &lax::RaggedDotDimensionNumbers {
        lhs_contracting: vec![c.n],
        rhs_contracting: vec![c.n],
        lhs_ragged_dimension: c.n,
        ..Default::default()
    });
    "lax::scaled_dot" => |c| lax::scaled_dot(&c.x, &c.y, &c.x, &c.y);
    "lax::reduce_and" => |c| lax::reduce_and(&c.x, &[c.n]);
    "lax::reduce_max" => |c| lax::reduce_max(&c.x, &[c.n]);
    "lax::reduce_min" => |c| lax::reduce_min(&c.x, &[0, c.n]);
    "lax::reduce_or" => |c| lax::reduce_or(&c.x, &[c.n]);
    "lax::reduce_prod" => |c| lax::reduce_prod(&c.x, &[c.n]);
    "lax::reduce_sum" => |c| lax::reduce_sum(&c.x, &[c.n, c.n]);
    "lax::reduce_window" => |c| {
        lax::reduce_window(&c.x, c.f, |a, b| a + b, lax::Window::new(c.window()).padding(c.padding()))
    };
    "lax::reduce_precision" => |c| lax::reduce_precision(&c.x, c.i.unsigned_abs(), c.n.min(100) as u32);
    "lax::reduce_window_max" => |c| lax::reduce_window_max(&c.x, lax::Window::new(c.window()));
    "lax::reduce_window_min" => |c| lax::reduce_window_min(&c.x, lax::Window::new(c.window()).padding(c.padding()).base_dilation(c.sizes()));
    "lax::reduce_window_sum" => |c| lax::reduce_window_sum(&c.x, lax::Window::new(c.window()).strides(c.sizes()).window_dilation(c.sizes()));
    "lax::rem" => |c| lax::rem(&c.x, &c.y);
    "lax::reshape" => |c| lax::reshape(&c.x, &[c.n, 1]);
    "lax::rev" => |c| same!(c; lax::rev(&c.x, &[c.i]), lax::rev(&c.x, &[c.n, 0]));
    "lax::scatter" => |c| same!(c;
        lax::scatter(ScatterKind::Add, &c.x, &c.places, &c.y, ScatterDimensionNumbers::default(), c.mode()),
        lax::scatter(ScatterKind::Max, &c.x, &c.places, &c.y, ScatterDimensionNumbers {
            update_window_dims: vec![c.n],
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![c.n],
            ..Default::default()
        }, c.mode())
    );
    "lax::select" => |c| same!(c; lax::select(&c.mask, &c.x, &c.y), lax::select(&c.x, &c.x, &c.y));
    "lax::select_n" => |c| same!(c; lax::select_n(&c.mask, &c.both()), lax::select_n(&c.places, &c.both()), lax::select_n(&c.x, &[]));
    "lax::shift_right_arithmetic" => |c| lax::shift_right_arithmetic(&c.x, &c.y);
    "lax::shift_right_logical" => |c| lax::shift_right_logical(&c.x, &c.y);
    "lax::slice" => |c| same!(c;
        lax::slice(&c.x, &[0], &[c.n], Some(&[c.i.unsigned_abs() as usize])),
        lax::slice(&c.x, &c.sizes(), c.x.shape(), Some(&c.sizes()))
    );
    "lax::slice_in_dim" => |c| same!(c; lax::slice_in_dim(&c.x, c.n, 2, c.i), lax::slice_in_dim(&c.x, 0, c.n, c.n));
    "lax::sort" => |c| same!(c; lax::sort(&c.both(), c.i, c.n), lax::sort(&[], 0, 1), lax::sort(std::slice::from_ref(&c.x), c.i, 1));
    "lax::sort_key_val" => |c| lax::sort_key_val(&c.x, &c.y, c.i);
    "lax::squeeze" => |c| lax::squeeze(&c.x, c.i);
    "lax::mulhi" => |c| lax::mulhi(&c.x, &c.y);
    "lax::polynomial" => |c| lax::polynomial(&c.x, c.both());
    "lax::top_k" => |c| same!(c; lax::top_k(&c.x, c.n), lax::TopKOptions::new().axis(c.i).top_k(&c.x, c.n));
    "lax::transpose" => |c| lax::transpose(&c.x, &[c.n, 0]);
    "lax::triangular_solve" => |c| lax::triangular_solve(&c.x, &c.y, lax::Triangular::default());
    "linalg::bicgstab" => |c| scipy::sparse::linalg::bicgstab(|x: Array| c.x.matmul(x), c.y.clone());
    "linalg::block_diag" => |c| scipy::linalg::block_diag(&c.both());
    "linalg::cg" => |c| scipy::sparse::linalg::cg(|x: Array| c.x.matmul(x), c.y.clone());
    "linalg::cho_factor" => |c| scipy::linalg::cho_factor(&c.x);
    "linalg::cho_solve" => |c| scipy::linalg::cho_solve(&c.x, &c.y);
    "linalg::cholesky" => |c| same!(c; linalg::cholesky(&c.x), scipy::linalg::cholesky(&c.x, true));
    "linalg::circulant" => |c| scipy::linalg::circulant(&c.x);
    "linalg::cond" => |c| same!(c; linalg::cond(&c.x, None), linalg::cond(&c.x, linalg::NormOrder::Fro));
    "linalg::companion" => |c| scipy::linalg::companion(&c.x);
    "linalg::det" => |c| linalg::det(&c.x);
    "linalg::dft" => |c| scipy::linalg::dft(c.n.min(64), scipy::linalg::DftScale::Sqrtn);
    "linalg::eig" => |c| linalg::eig(&c.x);
    "linalg::eigh" => |c| linalg::eigh(&c.x);
    "linalg::eigh_tridiagonal" => |c| scipy::linalg::eigh_tridiagonal(&c.x, &c.y);
    "linalg::eigvals" => |c| linalg::eigvals(&c.x);
    "linalg::eigvalsh" => |c| linalg::eigvalsh(&c.x);
    "linalg::expm" => |c| scipy::linalg::expm(&c.x);
    "linalg::expm_frechet" => |c| scipy::linalg::expm_frechet(&c.x, &c.y);
    "linalg::convolution_matrix" => |c| scipy::linalg::convolution_matrix(&c.x, 4, np::ConvolveMode::Full);
    "linalg::fiedler_companion" => |c| scipy::linalg::fiedler_companion(&c.x);
    "linalg::fiedler" => |c| scipy::linalg::fiedler(&c.x);
    "linalg::funm" => |c| scipy::linalg::funm(&c.x, |x| x.exp());
    "linalg::gmres" => |c| scipy::sparse::linalg::gmres(|x: Array| c.x.matmul(x), c.y.clone());
    "linalg::hadamard" => |c| scipy::linalg::hadamard(c.n, c.dtype);
    "linalg::hankel" => |c| scipy::linalg::hankel(&c.x, &c.y);
    "linalg::hessenberg" => |c| scipy::linalg::hessenberg(&c.x);
    "linalg::hilbert" => |c| scipy::linalg::hilbert(c.n.min(64));
    "linalg::helmert" => |c| scipy::linalg::helmert(c.n.min(64), true);
    "linalg::invhilbert" => |c| scipy::linalg::invhilbert(c.n.min(64));
    "linalg::invpascal" => |c| scipy::linalg::invpascal(c.n.min(64), scipy::linalg::PascalKind::Lower);
    "linalg::pascal" => |c| scipy::linalg::pascal(c.n.min(64), scipy::linalg::PascalKind::Symmetric);
    "linalg::inv" => |c| linalg::inv(&c.x);
    "linalg::leslie" => |c| scipy::linalg::leslie(&c.x, &c.y);
    "linalg::lstsq" => |c| {
        let (x, residuals, rank, s) = linalg::lstsq(&c.x, &c.y);
        vec![x, residuals, rank, s]
    };
    "linalg::lu" => |c| {
        let (p, l, u) = scipy::linalg::lu(&c.x);
        vec![p, l, u]
    };
    "linalg::lu_factor" => |c| scipy::linalg::lu_factor(&c.x);
    "linalg::lu_solve" => |c| scipy::linalg::lu_solve(scipy::linalg::lu_factor(&c.x), &c.y, scipy::linalg::Trans::No);
    "linalg::matrix_norm" => |c| linalg::matrix_norm(&c.x, None);
    "linalg::matrix_power" => |c| linalg::matrix_power(&c.x, c.i);
    "linalg::matrix_rank" => |c| linalg::matrix_rank(&c.x);
    "linalg::multi_dot" => |c| linalg::multi_dot([&c.x, &c.y, &c.x]);
    "linalg::norm" => |c| same!(c; linalg::norm(&c.x, c.f, c.i), linalg::norm(&c.x, linalg::NormOrder::Fro, ..));
    "linalg::norm_keepdims" => |c| linalg::norm_keepdims(&c.x, c.f, [c.i, 0]);
    "linalg::pinv" => |c| linalg::pinv(&c.x);
    "linalg::polar" => |c| scipy::linalg::polar(&c.x, scipy::linalg::PolarSide::Right);
    "linalg::poly" => |c| np::poly(&c.x);
    "linalg::polyfit" => |c| same!(c; np::polyfit(&c.x, &c.y, c.n, None), np::polyfit(&c.x, &c.y, 2, &c.y));
    "linalg::qr" => |c| linalg::qr(&c.x);
    "linalg::qr_complete" => |c| linalg::qr_complete(&c.x);
    "linalg::qr_multiply" => |c| scipy::linalg::qr_multiply(&c.x, &c.y);
    "linalg::roots" => |c| np::roots(&c.x);
    "linalg::rsf2csf" => |c| scipy::linalg::rsf2csf(&c.x, &c.y);
    "linalg::schur" => |c| scipy::linalg::schur(&c.x, scipy::linalg::SchurOutput::Complex);
    "linalg::slogdet" => |c| linalg::slogdet(&c.x);
    "linalg::solve" => |c| same!(c; linalg::solve(&c.x, &c.y), scipy::linalg::solve(&c.x, &c.y, scipy::linalg::AssumeA::Pos));
    "linalg::solve_triangular" => |c| scipy::linalg::solve_triangular(&c.x, &c.y, scipy::linalg::Trans::Adjoint, c.i > 0, c.i < 0);
    "linalg::solve_sylvester" => |c| scipy::linalg::solve_sylvester(&c.x, &c.y, &c.x);
    "linalg::sqrtm" => |c| scipy::linalg::sqrtm(&c.x);
    "linalg::svd" => |c| linalg::svd(&c.x);
    "linalg::svd_full" => |c| linalg::svd_full(&c.x);
    "linalg::svdvals" => |c| linalg::svdvals(&c.x);
    "linalg::tensorinv" => |c| linalg::tensorinv(&c.x, c.n);
    "linalg::tridiagonal" => |c| Vec::from(<[Array; 4]>::from(lax::linalg::tridiagonal(&c.x, c.i > 0)));
    "linalg::cholesky_update" => |c| lax::linalg::cholesky_update(&c.x, &c.y);
    "linalg::householder_product" => |c| lax::linalg::householder_product(&c.x, &c.y);
    "linalg::lu_pivots_to_permutation" => |c| lax::linalg::lu_pivots_to_permutation(&c.x, c.n);
    "linalg::ormqr" => |c| {
        let options = lax::linalg::OrmqrOptions { left: c.i > 0, transpose: c.n > 1 };
        lax::linalg::ormqr(&c.x, &c.y, &c.x, options)
    };
    "linalg::symmetric_product" => |c| {
        let options = lax::linalg::SymmetricProductOptions { alpha: c.f, beta: c.f, symmetrize_output: c.i > 0 };
        lax::linalg::symmetric_product(&c.x, &c.y, options)
    };
    "lax::tridiagonal_solve" => |c| lax::linalg::tridiagonal_solve(&c.x, &c.y, &c.x, c.y.expand_dims(-1));
    "linalg::tensorsolve" => |c| linalg::tensorsolve(&c.x, &c.y);
    "linalg::vector_norm" => |c| linalg::vector_norm(&c.x, c.f, [c.i, 0]);
    "linalg::toeplitz" => |c| scipy::linalg::toeplitz(&c.x, &c.y);
    "linalg::toeplitz_symmetric" => |c| scipy::linalg::toeplitz_symmetric(&c.x);
}
