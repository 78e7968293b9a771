"""One verifier a file: the file's name is the verifier's name, the function of that name grades."""
