"""The listening process: the only place that joins the parts."""
