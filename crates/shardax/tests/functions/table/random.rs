//! Random numbers.

use super::*;

table! {
    "random::PRNGKey" => |c| same!(c; random::PRNGKey(c.i), random::PRNGKey(&c.x));
    "random::ball" => |c| random::ball(&c.key, 2, c.f, [c.n, 2]);
    "random::ball_dtype" => |c| random::ball_dtype(&c.key, c.n, 2.0, [2], c.dtype);
    "random::bernoulli" => |c| same!(c; random::bernoulli(&c.key, c.f, [3]), random::bernoulli(&c.key, &c.x, [c.n]));
    "random::beta" => |c| random::beta(&c.key, &c.x, &c.y, c.x.shape());
    "random::beta_approximate" => |c| random::beta_approximate(&c.key, &c.x, &c.y, c.x.shape());
    "random::beta_approximate_dtype" => |c| random::beta_approximate_dtype(&c.key, c.f, c.f, [c.n, 2], c.dtype);
    "random::beta_dtype" => |c| random::beta_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::binomial" => |c| random::binomial(&c.key, &c.x, &c.y, c.x.shape());
    "random::binomial_dtype" => |c| random::binomial_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::bits" => |c| random::bits(&c.key, c.dims());
    "random::bits_dtype" => |c| random::bits_dtype(&c.key, [c.n], c.dtype);
    "random::categorical" => |c| random::categorical(&c.key, &c.x, c.i);
    "random::categorical_shape" => |c| random::categorical_shape(&c.key, &c.x, c.i, Some(&[c.n]));
    "random::cauchy" => |c| random::cauchy(&c.key, [c.n]);
    "random::cauchy_dtype" => |c| random::cauchy_dtype(&c.key, 3, c.dtype);
    "random::chisquare" => |c| random::chisquare(&c.key, &c.x, c.x.shape());
    "random::chisquare_approximate" => |c| random::chisquare_approximate(&c.key, &c.x, c.x.shape());
    "random::chisquare_approximate_dtype" => |c| random::chisquare_approximate_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::chisquare_dtype" => |c| random::chisquare_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::choice" => |c| same!(c;
        random::ChoiceOptions::new().replace(c.i > 0).choice(&c.key, c.i, [2]),
        random::choice(&c.key, c.n, [2]),
        random::ChoiceOptions::new().replace(c.i > 0).axis(c.i).choice(&c.key, &c.x, [c.n]),
        random::ChoiceOptions::new().replace(c.i > 0).p(&c.y).choice(&c.key, &c.x, [2]),
        random::ChoiceOptions::new().p(&c.x).choice(&c.key, c.n, [2])
    );
    "random::clone" => |c| same!(c; random::clone(&c.key), random::clone(&c.x));
    "random::dirichlet" => |c| random::dirichlet(&c.key, &c.x, c.x.shape());
    "random::dirichlet_dtype" => |c| random::dirichlet_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::double_sided_maxwell" => |c| random::double_sided_maxwell(&c.key, &c.x, &c.y, c.x.shape());
    "random::double_sided_maxwell_dtype" => |c|
        random::double_sided_maxwell_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::exponential" => |c| random::exponential(&c.x, [c.n]);
    "random::exponential_dtype" => |c| random::exponential_dtype(&c.key, [2, 0], c.dtype);
    "random::f" => |c| random::f(&c.key, &c.x, &c.y, c.x.shape());
    "random::f_dtype" => |c| random::f_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::fold_in" => |c| same!(c; random::fold_in(&c.key, c.i), random::fold_in(&c.key, &c.x), random::fold_in(&c.key, c.n));
    "random::gamma" => |c| random::gamma(&c.key, &c.x, c.x.shape());
    "random::gamma_approximate" => |c| random::gamma_approximate(&c.key, &c.x, c.x.shape());
    "random::gamma_approximate_dtype" => |c| random::gamma_approximate_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::gamma_dtype" => |c| random::gamma_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::generalized_normal" => |c| random::generalized_normal(&c.key, c.f, [c.n, 2]);
    "random::generalized_normal_dtype" => |c| random::generalized_normal_dtype(&c.key, c.f, [2], c.dtype);
    "random::geometric" => |c| random::geometric(&c.key, &c.x, c.x.shape());
    "random::geometric_dtype" => |c| random::geometric_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::gumbel" => |c| random::gumbel(&c.key, c.dims());
    "random::gumbel_dtype" => |c| random::gumbel_dtype(&c.key, [c.n, 0], c.dtype);
    "random::key" => |c| same!(c; random::key(c.n), random::key(c.f));
    "random::key_data" => |c| same!(c; random::key_data(&c.key), random::key_data(&c.x));
    "random::key_impl" => |c| random::key_impl(&c.key).map(done);
    "random::laplace" => |c| random::laplace(&c.key, c.n);
    "random::laplace_dtype" => |c| random::laplace_dtype(&c.key, c.x.shape(), c.dtype);
    "random::loggamma" => |c| random::loggamma(&c.key, &c.x, c.x.shape());
    "random::loggamma_approximate" => |c| random::loggamma_approximate(&c.key, &c.x, c.x.shape());
    "random::loggamma_approximate_dtype" => |c| random::loggamma_approximate_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::loggamma_dtype" => |c| random::loggamma_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::logistic" => |c| random::logistic(&c.key, c.n);
    "random::logistic_dtype" => |c| random::logistic_dtype(&c.key, c.x.shape(), c.dtype);
    "random::lognormal" => |c| random::lognormal(&c.key, &c.x, c.x.shape());
    "random::lognormal_dtype" => |c| random::lognormal_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::maxwell" => |c| random::maxwell(&c.key, c.dims());
    "random::maxwell_dtype" => |c| random::maxwell_dtype(&c.key, [c.n, 0], c.dtype);
    "random::multinomial" => |c| same!(c; random::multinomial(&c.key, c.n, &c.x), random::multinomial(&c.key, &c.y, &c.x));
    "random::multivariate_normal" => |c| random::multivariate_normal(&c.key, &c.x, &c.y, [c.n, 2]);
    "random::normal" => |c| random::normal(&c.key, c.dims());
    "random::normal_dtype" => |c| same!(c; random::normal_dtype(&c.key, c.x.shape(), c.dtype), random::normal_dtype(&c.key, c.n, c.dtype));
    "random::orthogonal" => |c| random::orthogonal(&c.key, c.n);
    "random::orthogonal_dtype" => |c| random::orthogonal_dtype(&c.key, [c.n, 2], [1, 0], c.dtype);
    "random::pareto" => |c| random::pareto(&c.key, &c.x, c.x.shape());
    "random::pareto_dtype" => |c| random::pareto_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::permutation" => |c| same!(c;
        random::permutation(&c.key, c.n),
        random::permutation(&c.key, c.i),
        random::permutation(&c.key, &c.x),
        random::PermutationOptions::new().axis(c.i).independent(c.i > 0).permutation(&c.key, &c.x)
    );
    "random::poisson" => |c| random::poisson(&c.key, &c.x, c.x.shape());
    "random::poisson_approximate" => |c| random::poisson_approximate(&c.key, &c.x, c.x.shape());
    "random::poisson_approximate_dtype" => |c| random::poisson_approximate_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::poisson_dtype" => |c| random::poisson_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::rademacher" => |c| random::rademacher(&c.key, c.dims());
    "random::rademacher_dtype" => |c| random::rademacher_dtype(&c.key, c.x.shape(), c.dtype);
    "random::randint" => |c| same!(c; random::randint(&c.key, 3, c.i, c.n), random::randint(&c.key, [c.n], &c.x, &c.y));
    "random::randint_dtype" => |c| random::randint_dtype(&c.key, c.x.shape(), &c.x, c.n, c.dtype);
    "random::rayleigh" => |c| random::rayleigh(&c.key, &c.x, c.x.shape());
    "random::rayleigh_dtype" => |c| random::rayleigh_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::split" => |c| same!(c; random::split(&c.key, c.n), random::split(&c.x, 2), random::split(&c.key, c.dims()));
    "random::split_n" => |c| same!(c; random::split_n::<3>(&c.key)[2].clone(), random::split_n::<2>(&c.x)[0].clone());
    "random::t" => |c| random::t(&c.key, &c.x, c.x.shape());
    "random::t_dtype" => |c| random::t_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::triangular" => |c| random::triangular(&c.key, &c.x, &c.y, c.f, c.x.shape());
    "random::triangular_dtype" => |c| random::triangular_dtype(&c.key, c.f, &c.x, c.i, [c.n, 2], c.dtype);
    "random::truncated_normal" => |c| random::truncated_normal(&c.key, c.f, c.i, 2);
    "random::truncated_normal_dtype" => |c| random::truncated_normal_dtype(&c.key, &c.x, &c.y, c.x.shape(), c.dtype);
    "random::uniform" => |c| random::uniform(&c.key, c.dims());
    "random::uniform_dtype" => |c| random::uniform_dtype(&c.key, c.x.shape(), c.dtype, &c.x, c.f);
    "random::wald" => |c| random::wald(&c.key, &c.x, c.x.shape());
    "random::wald_dtype" => |c| random::wald_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::weibull_min" => |c| random::weibull_min(&c.key, &c.x, &c.y, c.x.shape());
    "random::weibull_min_dtype" => |c| random::weibull_min_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::wrap_key_data" => |c| random::wrap_key_data(&c.places);
}
