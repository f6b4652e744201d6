"""What the service costs, against bare proxies of the same model server in the same run."""
