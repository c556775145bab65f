"""The four topologies, each written out, and the processes they are assembled from."""
