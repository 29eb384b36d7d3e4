"""Solve a diffusion equation on a square or a cube by implicit steps, each a sparse system by conjugate gradients."""

import argparse

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg


def laplacian(points, dimensions):
    """Return the (negative) Laplacian of a grid of ``points`` in each direction, with fixed edges."""
    line = sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(points, points)) * (points + 1) ** 2
    identity = sparse.identity(points)
    total = line
    for _ in range(dimensions - 1):
        total = sparse.kron(total, identity) + sparse.kron(sparse.identity(total.shape[0]), line)
    return total.tocsr()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dimensions", type=int, choices=[2, 3], default=2)
    parser.add_argument("--points", type=int, default=256, help="thousands of unknowns")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step-size", type=float, default=1e-3)
    parser.add_argument("--preconditioner", choices=["none", "jacobi"], default="none")
    parser.add_argument("--precision", choices=["single", "double"], default="double")
    args = parser.parse_args()

    side = round((1000 * args.points) ** (1 / args.dimensions))
    dtype = np.float32 if args.precision == "single" else np.float64
    operator = laplacian(side, args.dimensions)
    rng = np.random.default_rng(0)
    conductivity = sparse.diags(rng.uniform(0.5, 1.5, operator.shape[0]))
    system = sparse.identity(operator.shape[0]) + args.step_size * (conductivity @ operator @ conductivity)
    system = system.astype(dtype).tocsr()
    inverse = None
    if args.preconditioner == "jacobi":
        scale = 1 / system.diagonal()
        inverse = LinearOperator(system.shape, lambda v: scale * v.ravel(), dtype=dtype)
    heat = rng.standard_normal(system.shape[0]).astype(dtype)
    for step in range(args.steps):
        heat, failed = cg(system, heat, x0=heat, rtol=1e-5, maxiter=5000, M=inverse)
        if failed:
            raise SystemExit(f"step {step} did not converge")
    print(f"{system.shape[0]} unknowns, {args.steps} steps, mean {heat.mean():.3g}")


if __name__ == "__main__":
    main()
