"""What runs and watches Korvet; the code here only makes files that lie beside it."""
