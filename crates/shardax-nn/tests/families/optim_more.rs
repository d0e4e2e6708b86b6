//! Ten steps of the optimizers that look at whole matrices, at a second point, or at steps before.

use shardax_nn::optim::*;

use super::optim_ten::Run;
use crate::golden_support::{Case, Fun};

pub fn function(case: &Case) -> Option<Fun> {
    let run = Run::of(case)?;
    match case.op.as_str() {
        "muon" => run.ten(muon(0.1)),
        "sam" => run.ten(sam(sgd_momentum(0.1, 0.9, false), (normalize(), sgd(0.5)))),
        "lbfgs" => run.ten((ScaleByLbfgs { memory_size: 4, ..scale_by_lbfgs() }, scale_by_learning_rate(0.01))),
        "optimistic_gradient_descent" => run.ten(optimistic_gradient_descent(0.1)),
        "rprop" => run.ten(rprop(0.1)),
        _ => None,
    }
}
