"""Many runs: sweeps on this machine or a Ray cluster, and the plan for them."""
