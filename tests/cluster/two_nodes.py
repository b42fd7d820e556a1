"""A Ray cluster of two nodes on this machine, in a process of its own: Ray leaves warnings behind that are not ours.

Prints the address of the head node and the process number of the other node, which it kills when it reads a line.
"""

import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray.cluster_utils import Cluster

# Room for one run each. 80 MB is the least that Ray takes for its object store, in which we put nothing.
NODE = {"num_cpus": 1, "memory": 2_000_000_000, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}

if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    node = cluster.add_node(**NODE)
    print(cluster.address, node.all_processes["raylet"][0].process.pid, flush=True)
    if sys.stdin.readline():
        cluster.remove_node(node, allow_graceful=False)
        print("killed", flush=True)
        sys.stdin.readline()
    cluster.shutdown()
