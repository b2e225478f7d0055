(component (core module (table 10000000 funcref)))
