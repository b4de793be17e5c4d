"""The report: what each queue's timeout costs and what it should be, as one HTML file and as a table in the terminal."""
