//! `linear_solve`: the solution of linear equations by a user's program, differentiated without differentiating that.

use smallvec::SmallVec;

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::trace::{Traced, trace};
use crate::core::program::{Aval, Program};
use crate::error::{Result, err};
use crate::interpret::ad::{backward, jvp_eval, tangent_aval};
use crate::interpret::backward_logs;
use crate::interpret::batching::batch_program;
use crate::interpret::higher_order::{bind_checked, tangent_or_zeros};
use crate::interpret::vary;
use crate::shape::AxisSet;

/// A program of captured values, then arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub program: Program,
    pub captures: usize,
}

/// Solves `matvec(x) = b`. Operands are the captured values of all parts in order, then `b`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinearSolve {
    pub matvec: Part,
    /// The transpose of `matvec`.
    pub vecmat: Part,
    pub solve: Part,
    /// Solves `vecmat(y) = c`; without it, the solution cannot be differentiated in reverse mode.
    pub transpose_solve: Option<Part>,
}

/// The program of the transpose of a linear program: the same captured values, then cotangents of the results.
pub(crate) fn transposed(matvec: &Part) -> Result<Traced> {
    let (captured, inputs): (Vec<_>, Vec<_>) =
        matvec.program.in_avals().cloned().enumerate().partition(|(i, _)| *i < matvec.captures);
    let [captured, inputs] = [captured, inputs].map(|avals| avals.into_iter().map(|(_, a)| a).collect::<Vec<Aval>>());
    let avals = [captured, matvec.program.out_avals()].concat();
    trace(&avals, |args| {
        let (captured, cts) = args.split_at(matvec.captures);
        let operands = captured.iter().cloned().map(Operand::NonLinear);
        let operands: Vec<Operand> = operands.chain(inputs.iter().cloned().map(Operand::Linear)).collect();
        let cts: Vec<_> = cts.iter().cloned().map(Some).collect();
        // Nothing is logged, because a solver calls it any number of times.
        let (in_cts, _) = backward_logs::collect(false, || backward(&matvec.program, &operands, &cts))?;
        Ok(in_cts[matvec.captures..].iter().zip(&inputs).map(|(ct, aval)| tangent_or_zeros(ct, aval)).collect())
    })
}

impl LinearSolve {
    fn parts(&self) -> impl Iterator<Item = &Part> {
        [&self.matvec, &self.vecmat, &self.solve].into_iter().chain(&self.transpose_solve)
    }

    /// The ranges of the captured values of each part, and where `b` begins.
    fn starts(&self) -> Vec<usize> {
        let mut starts = vec![0];
        for (i, part) in self.parts().enumerate() {
            starts.push(starts[i] + part.captures);
        }
        starts
    }

    /// The operands of one part's program: its captured values among `all`, and `last` in the place of `b`.
    fn operands<T: Clone>(&self, part: usize, all: &[T], last: &[T]) -> Vec<T> {
        let starts = self.starts();
        [&all[starts[part]..starts[part + 1]], last].concat()
    }

    fn right_side<'a, T>(&self, all: &'a [T]) -> &'a [T] {
        &all[self.starts().last().copied().unwrap_or(0)..]
    }

    fn derivative(&self, args: &[Array], tangents: &[Option<Array>], linear: bool) -> Result<(Outputs, Tangents)> {
        let outs = bind_checked(self.clone(), args)?;
        // With A x = b: A dx = db - dA x.
        let mut right: Tangents = self.right_side(tangents).to_vec();
        let captured_tangents = self.operands(0, tangents, &[]);
        if captured_tangents.iter().any(Option::is_some) {
            let primals = self.operands(0, args, &outs);
            let matvec_tangents = [captured_tangents, vec![None; outs.len()]].concat();
            let (_, changes) = jvp_eval(&self.matvec.program, &primals, &matvec_tangents, linear)?;
            for (t, change) in right.iter_mut().zip(changes) {
                *t = match (t.take(), change) {
                    (Some(t), Some(change)) => Some(t - change),
                    (t, change) => t.or_else(|| change.map(|c| -c)),
                };
            }
        }
        if right.iter().all(Option::is_none) {
            return Ok((outs.clone(), vec![None; outs.len()]));
        }
        let captured = &args[..args.len() - right.len()];
        let right: Vec<Array> = right.iter().zip(&outs).map(|(t, out)| tangent_or_zeros(t, &out.aval())).collect();
        let tangents = bind_checked(self.clone(), &[captured, &right].concat())?;
        let out_tangents =
            tangents.into_iter().zip(&outs).map(|(t, out)| tangent_aval(&out.aval()).map(|_| t)).collect();
        Ok((outs, out_tangents))
    }
}

impl Primitive for LinearSolve {
    fn name(&self) -> &'static str {
        "linear_solve"
    }

    fn output_count(&self) -> usize {
        self.solve.program.outputs.len()
    }

    fn programs(&self) -> Vec<&Program> {
        self.parts().map(|part| &part.program).collect()
    }

    fn casts_operands(&self) -> bool {
        false
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let operands = self.operands(2, args, self.right_side(args));
        super::call::check_operands("linear_solve", &self.solve.program, &operands)?;
        Ok(self.solve.program.out_avals().into())
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(vary::outputs(&self.solve.program, &self.operands(2, args, self.right_side(args)))?.into())
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        let operands = self.operands(2, args, self.right_side(args));
        cx.program(&self.solve.program, &operands)
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        self.derivative(args, tangents, false)
    }

    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        self.derivative(args, tangents, true)
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(transpose_solve) = &self.transpose_solve else {
            return Err(err!(
                NotImplemented,
                "transpose_solve required for backwards mode automatic differentiation of custom_linear_solve"
            )
            .help("pass the solver of the transposed equations, or state that the matrix is symmetric"));
        };
        let values: Vec<Array> = args[..args.len() - self.output_count()]
            .iter()
            .map(|operand| operand.value().cloned())
            .collect::<Result<_>>()?;
        let avals = self.solve.program.out_avals();
        let cts: Vec<Array> = cts.iter().zip(&avals).map(|(ct, aval)| tangent_or_zeros(ct, aval)).collect();
        // The transposed problem exchanges the matrix with its transpose, and the two solvers.
        let [vecmat, matvec, transposed, solve] = [1, 0, 3, 2].map(|i| self.operands(i, &values, &[]));
        let operands = [vecmat, matvec, transposed, solve, cts].concat();
        let this = LinearSolve {
            matvec: self.vecmat.clone(),
            vecmat: self.matvec.clone(),
            solve: transpose_solve.clone(),
            transpose_solve: Some(self.solve.clone()),
        };
        let in_cts = bind_checked(this, &operands)?.into_iter().map(Some);
        Ok(vec![None; values.len()].into_iter().chain(in_cts).collect())
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let count = self.output_count();
        let out_dims = vec![Some(0); count];
        let mut operands = Vec::new();
        let mut batched = Vec::new();
        for (i, part) in self.parts().enumerate() {
            let dims = self.operands(i, dims, &out_dims);
            let (Traced { program, captures }, _) = batch_program(&part.program, axis, &dims, &vec![true; count])?;
            batched.push(Part { program, captures: captures.len() + part.captures });
            operands.extend(captures);
            operands.extend(self.operands(i, args, &[]));
        }
        let right = self.right_side(args).iter().zip(self.right_side(dims));
        operands.extend(right.map(|(b, dim)| axis.moved(b, *dim, 0)));
        let mut batched = batched.into_iter();
        let (Some(matvec), Some(vecmat), Some(solve)) = (batched.next(), batched.next(), batched.next()) else {
            return Err(err!(Runtime, "internal error: linear_solve has too few operands; please report this"));
        };
        let this = LinearSolve { matvec, vecmat, solve, transpose_solve: batched.next() };
        Ok((bind_checked(this, &operands)?, out_dims))
    }
}
